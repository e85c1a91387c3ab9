#include "plan.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <vector>

#include <torch/cuda.h>

#include "lockstep/error.h"
#include "lockstep/gpt2_memory.h"
#include "lockstep/progress.h"
#include "lockstep/tokenizer.h"
#include "model_setup.h"
#include "recipe.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using lockstep::MemoryPlan;
using lockstep::ModelSizes;
using lockstep::show_bytes;

lockstep::Gpt2Config planned_config(const Options& options) {
  std::int64_t entries = 1;  // with --model-name its configuration says
  if (!options.tokenizer.empty()) {
    entries = lockstep::Tokenizer::load(options.tokenizer).size();
  } else if (options.model_name.empty()) {
    entries = options.vocab_size;
  }
  return model_config(options, entries);
}

/// Bytes of an element.
struct Widths {
  int parts = 4;     // what the optimizer changes
  int weights = 4;   // what is computed with, and what flows between blocks
  int products = 4;  // what products are made of
  int sent_gradients = 4;
};

Widths widths_of(const std::string& dtype) {
  if (dtype == "bf16") return {.parts = 2, .weights = 2, .products = 2, .sent_gradients = 2};
  if (dtype == "bf16-mixed") return {.weights = 2, .products = 2};
  if (dtype == "fp32") return {};
  return {.products = 2};
}

// The device that a run here would take.
bool is_for_cpu(const Options& options) {
  return options.device.empty() ? !torch::cuda::is_available() : options.device == "cpu";
}

// Without sharding there are no parts that could have a type of their own.
int first_stage(const Options& options) {
  return options.dtype == "bf16-mixed" ? 1 : 0;
}

ModelSizes planned_sizes(const Options& options, const lockstep::Gpt2Config& config) {
  const Widths widths = widths_of(options.dtype);
  const bool on_device = options.device.starts_with("cuda");
  return lockstep::gpt2_sizes(config,
                              {.tokens = std::min(options.seq_length, config.n_positions),
                               .weight_bytes = widths.weights,
                               .product_bytes = widths.products,
                               .head_chunk_bytes = std::int64_t{on_device ? 1024 : 8} << 20});
}

MemoryPlan plan_of(const Options& options) {
  const Widths widths = widths_of(options.dtype);
  return {.stage = static_cast<int>(options.shard),
          .ranks = static_cast<int>(options.ranks),
          .replicas = static_cast<int>(options.shard_replicas),
          .peer_copies = options.shard_copies,
          .micro_batch = options.batch_size,
          .activation_checkpointing = options.activation_checkpointing,
          .part_bytes = widths.parts,
          .gather_bytes = widths.weights,
          .reduce_bytes = widths.sent_gradients,
          .optimizer_bytes = 2 * widths.parts};
}

std::string in_shell(const nlohmann::json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  const bool plain = !text.empty() && std::ranges::all_of(text, [](unsigned char letter) {
    return std::isalnum(letter) != 0 ||
           std::string_view("_-./:,=+").find(static_cast<char>(letter)) != std::string_view::npos;
  });
  if (plain) return text;
  std::string quoted = "'";
  for (const char letter : text)
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

// The options that were given, with those that were chosen in place of what they say.
std::string command_of(const Invocation& invocation, const MemoryPlan& plan, bool defers) {
  std::string command = "train_llm";
  if (plan.ranks > 1) {
    command = concat("lockstep run --standalone --nproc-per-node ", plan.ranks, " ", command);
  }
  const Options defaults = invocation.embedded ? parse_command_line({}).options : Options{};
  const auto usual = effective_config(defaults), given = effective_config(invocation.options);
  static const std::set<std::string> left_out = {"plan",       "memory", "ranks",
                                                 "batch-size", "shard",  "defer-init"};
  for (const auto& [name, value] : given.items()) {
    if (left_out.contains(name) || value == usual.at(name)) continue;
    command += " --" + name;
    if (!value.is_boolean()) command += " " + in_shell(value);
  }
  command += concat(" --batch-size ", plan.micro_batch);
  if (plan.stage > 0) command += concat(" --shard ", plan.stage);
  if (defers) command += " --defer-init";
  return command;
}

std::int64_t memory_limit(const Options& options) {
  try {
    return lockstep::parse_bytes(options.memory);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--memory: ", error.what()));
  }
}

// The least that this model takes on so many ranks.
MemoryPlan least_plan(MemoryPlan plan) {
  plan.stage = 3;
  plan.micro_batch = 1;
  plan.activation_checkpointing = true;
  return plan;
}

}  // namespace

std::string plan_text(const Invocation& given) {
  Invocation invocation = given;
  Options& options = invocation.options;
  if (options.dtype == kAutoType) options.dtype = usual_dtype(is_for_cpu(options));
  const lockstep::Gpt2Config config = planned_config(options);
  const ModelSizes sizes = planned_sizes(options, config);
  const MemoryPlan asked = plan_of(options);
  check_ranks(options, asked.ranks);
  std::string text =
      concat(lockstep::short_number(static_cast<double>(config.parameter_count())), " parameters, ",
             options.dtype, ", ", asked.ranks, " rank(s), sequences of ",
             std::min(options.seq_length, config.n_positions), " tokens",
             asked.activation_checkpointing ? ", activation checkpointing" : "");
  MemoryPlan chosen = asked;
  if (options.memory.empty()) {
    text += concat(", --batch-size ", asked.micro_batch);
  } else {
    const std::int64_t limit = memory_limit(options);
    const auto fitting = lockstep::fit_memory(sizes, asked, limit);
    if (!fitting) {
      const MemoryPlan least = least_plan(asked);
      throw InvalidArgument(concat(
          "--memory is ", options.memory, ", and nothing fits into it on ", asked.ranks,
          " rank(s); the least is ", show_bytes(lockstep::predict_memory(sizes, least).peak),
          " a rank, with --shard 3 --batch-size 1 --activation-checkpointing; use more ranks or a "
          "shorter --seq-length"));
    }
    chosen = *fitting;
  }
  std::vector<lockstep::MemoryRow> rows;
  for (int stage = first_stage(options); stage <= 3; ++stage) {
    MemoryPlan plan = chosen;
    plan.stage = stage;
    rows.push_back(
        {.name = concat("stage ", stage), .memory = lockstep::predict_memory(sizes, plan)});
  }
  text += options.memory.empty()
              ? "; bytes of a rank, the most of each kind and of all together:\n"
              : concat(", --batch-size ", chosen.micro_batch, "; bytes of a rank:\n");
  text += lockstep::memory_table(rows);
  if (options.memory.empty()) return text;
  text += concat("stage ", chosen.stage, " fits into ", options.memory, " with ",
                 show_bytes(lockstep::predict_memory(sizes, chosen).peak));
  // Weights are float32 when they are made, and before the run whole on every rank.
  const bool too_large_to_make = 4 * config.parameter_count() > memory_limit(options);
  const bool defers = chosen.stage == 3 && (options.defer_init || too_large_to_make);
  return text + ":\n  " + command_of(invocation, chosen, defers) + "\n";
}

}  // namespace train_llm
