#include "command_line.h"

#include <algorithm>

#include "lockstep/error.h"
#include "lockstep/tracker.h"
#include "program_options/option_words.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

using program_options::Values;

// Learned by trying: see docs/train_llm.md.
const Values& embedded_defaults() {
  static const Values values = {{"model", "tiny"},
                                {"n-layer", 2},
                                {"n-embd", 96},
                                {"n-head", 4},
                                {"dtype", "fp32"},
                                {"seq-length", 20},
                                {"packing", "single"},
                                {"template", "brief"},
                                {"loss-on-answers", true},
                                {"vocab-size", 320},
                                {"batch-size", 16},
                                {"num-epochs", 1000},
                                {"max-steps", 3200},
                                {"lr", 2e-3},
                                {"schedule-steps", 0},
                                {"warmup", 50},
                                {"min-lr-factor", 0.05},
                                {"weight-decay", 0.1},
                                {"decay-matrices-only", true},
                                {"beta2", 0.95},
                                {"grad-clip", 1.0},
                                {"log-freq", 200},
                                {"ckpt-freq", 800},
                                {"eval-fraction", 0.02},
                                {"eval-freq", 800}};
  return values;
}

void check_target(Invocation& invocation, const std::vector<std::string>& positionals) {
  const bool wants_target = invocation.command == Command::export_model;
  if (positionals.size() > (wants_target ? 1U : 0U)) {
    throw InvalidArgument(concat("\"", positionals.back(), "\" is one word too many (see --help)"));
  }
  if (!wants_target) return;
  if (positionals.empty()) {
    throw InvalidArgument("export needs the folder to write: train_llm export DIR");
  }
  invocation.target = positionals.front();
}

void check(const Options& options, Command command) {
  if (command == Command::generate) {
    if (options.prompt.empty() == options.instruction.empty()) {
      throw InvalidArgument("generate needs either --prompt or --instruction");
    }
    if (!options.input.empty() && options.instruction.empty()) {
      throw InvalidArgument("--input belongs to --instruction, which is not given");
    }
    return;
  }
  if (!options.model_name.empty() && !options.model.empty()) {
    throw InvalidArgument(
        "--model-name and --model are both given; the first trains what is there on, the second "
        "begins from scratch (as --model-name DIR --from-scratch does)");
  }
  if (!options.memory.empty() && !options.plan) {
    throw InvalidArgument("--memory belongs to --plan, which is not given");
  }
  if (options.from_scratch && options.model_name.empty()) {
    throw InvalidArgument("--from-scratch needs --model-name; without one all weights are new");
  }
  if (options.dtype == "bf16-mixed" && options.shard == 0) {
    throw InvalidArgument(
        "--dtype is bf16-mixed, which is for sharded runs; give --shard 1, 2 or 3, or --dtype "
        "bf16-autocast");
  }
  if (options.defer_init && options.shard != 3) {
    throw InvalidArgument(concat("--defer-init needs --shard 3, and --shard is ", options.shard));
  }
  if (options.shard_replicas > 1 && options.shard == 0) {
    throw InvalidArgument(concat("--shard-replicas is ", options.shard_replicas,
                                 " without --shard, which cuts what there are replicas of"));
  }
  if (options.shard_copies && options.shard == 0) {
    throw InvalidArgument("--shard-copies without --shard, which makes the parts to be copied");
  }
  if (options.shard_copies && options.shard_replicas > 1) {
    throw InvalidArgument(concat("--shard-copies with --shard-replicas ", options.shard_replicas,
                                 ", which has each part on several ranks already; leave one out"));
  }
  if (options.defer_init && options.eval_fraction > 0) {
    throw InvalidArgument(concat("--eval-fraction is ", options.eval_fraction,
                                 " with --defer-init; a validation would bring the whole model "
                                 "together: set it to 0"));
  }
  try {
    lockstep::TrackingOptions tracking;
    lockstep::choose_sinks(tracking, options.track);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--track is ", options.track, ": ", error.what()));
  }
  const bool falls = options.schedule == "cosine" || options.schedule == "linear";
  if (falls && options.schedule_steps != 0 && options.warmup >= options.schedule_steps) {
    throw InvalidArgument(concat("--warmup is ", options.warmup,
                                 ", but --schedule-steps, which includes it, is ",
                                 options.schedule_steps));
  }
}

}  // namespace

void check_ranks(const Options& options, std::int64_t ranks) {
  if (options.shard == 0) return;
  if (options.shard_copies && ranks < 2) {
    throw InvalidArgument("--shard-copies on one rank; a copy at another takes two");
  }
  if (ranks % options.shard_replicas != 0) {
    throw InvalidArgument(concat("--shard-replicas is ", options.shard_replicas,
                                 "; the number of ranks, ", ranks, ", must be a multiple of it"));
  }
}

Invocation parse_command_line(const std::vector<std::string>& arguments) {
  Invocation invocation;
  std::vector<std::string> rest = arguments;
  if (!rest.empty() && (rest[0] == "generate" || rest[0] == "export" || rest[0] == "train")) {
    if (rest[0] == "generate") invocation.command = Command::generate;
    if (rest[0] == "export") invocation.command = Command::export_model;
    rest.erase(rest.begin());
  }
  const auto command = static_cast<unsigned>(invocation.command);
  const auto given = program_options::read_words(rest, all_options(), command);
  invocation.help = given.help;
  if (given.help) return invocation;
  check_target(invocation, given.positionals);
  Values config;
  if (!given.config_file.empty()) {
    config = program_options::read_config(given.config_file, all_options(), command);
  }

  const auto names = [&](std::string_view option) {
    return given.values.contains(option) ||
           (config.contains(option) && config.find(option)->second != "");
  };
  invocation.embedded = invocation.command == Command::train && !names("dataset-name") &&
                        !names("model-name") && !names("model");
  const auto set = [&](const Values& values) {
    program_options::apply(invocation.options, values, all_options(), command);
  };
  if (invocation.embedded) set(embedded_defaults());
  set(config);
  set(given.values);
  Options& options = invocation.options;
  // A first try of a few steps should not fail for a default that nobody has asked for.
  if (invocation.embedded && !names("warmup") && options.max_steps > 0) {
    options.warmup = std::min(options.warmup, options.max_steps / 2);
  }
  check(invocation.options, invocation.command);
  return invocation;
}

Options read_stored_options(const std::string& path) {
  const auto command = static_cast<unsigned>(Command::train);
  Options options;
  program_options::apply(options, program_options::read_config(path, all_options(), command),
                         all_options(), command);
  return options;
}

nlohmann::ordered_json effective_config(const Options& options) {
  return program_options::all_values(options, all_options(), static_cast<unsigned>(Command::train));
}

}  // namespace train_llm
