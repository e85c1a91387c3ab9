#include "command_line.h"

#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/tracker.h"
#include "program_options/option_words.h"

namespace translate {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using program_options::Values;

constexpr auto kTrainBit = static_cast<unsigned>(Command::train);

constexpr std::string_view kTrainIntroduction =
    R"(usage: translate [train] [OPTIONS]
       translate infer [OPTIONS] [SENTENCE]...

Trains the Transformer of "Attention is all you need" on sentence pairs, on all ranks of a job. Without
--data a small one learns a made-up language from pairs inside the program. Started again with the same
options it goes on where it stopped, and ends with the same bits.

  lockstep run --standalone --nproc-per-node 2 translate \
    --data opus_books.parquet --lang-src en --lang-tgt it --experiment-name en-it
)";

constexpr std::string_view kInferIntroduction =
    R"(usage: translate infer [OPTIONS] [SENTENCE]...

Translates sentences with the model of a run, a line each; without any, the lines of standard input.
)";

// Learned by trying: see docs/translate.md.
const Values& embedded_defaults() {
  static const Values values = {{"pairs", 12000},       {"validation-fraction", 0.04},
                                {"lang-src", "source"}, {"lang-tgt", "target"},
                                {"seq-len", 40},        {"d-model", 96},
                                {"layers", 2},          {"heads", 4},
                                {"d-ff", 256},          {"dropout", 0.0},
                                {"min-frequency", 1},   {"batch-size", 32},
                                {"epochs", 5},          {"lr", 2e-3},
                                {"schedule", "cosine"}, {"warmup", 100},
                                {"beta2", 0.98},        {"grad-clip", 1.0}};
  return values;
}

// Options that say how a run is watched or started, not what it computes.
const std::set<std::string_view> kHarmless = {
    "ranks",       "epochs",    "max-steps",       "time-limit", "num-workers",
    "log-freq",    "ckpt-freq", "keep-last",       "preload",    "examples",
    "no-progress", "save-dir",  "eval-freq",       "device",     "track",
    "beam",        "backend",   "experiment-name", "slots",      "length-penalty"};

void check_preload(const char* option, const std::string& word, bool none_is_known) {
  if (word == "latest" || (none_is_known && word == "none") || epoch_number(word)) return;
  throw InvalidArgument(concat(option, " is \"", word, "\"; it must be latest, ",
                               none_is_known ? "none " : "", "or the number of an epoch"));
}

void check(const Options& options) {
  check_preload("--preload", options.preload, /*none_is_known=*/true);
  if (options.data.empty() && !options.target_data.empty()) {
    throw InvalidArgument("--target-data needs --data, which has the sources");
  }
  if (options.lang_src == options.lang_tgt) {
    throw InvalidArgument(concat("--lang-src and --lang-tgt are both \"", options.lang_src,
                                 "\"; they name the two sides of a pair"));
  }
  for (const auto& [option, name] :
       {std::pair("--lang-src", options.lang_src), std::pair("--lang-tgt", options.lang_tgt)}) {
    // It becomes a part of the tokenizer's file name.
    if (!name.empty() && name.find('/') == std::string::npos) continue;
    throw InvalidArgument(
        concat(option, " is \"", name, "\"; a language has a name, and no '/' in it"));
  }
  if (options.d_model % options.heads != 0) {
    throw InvalidArgument(concat("--d-model is ", options.d_model,
                                 "; it must be a multiple of --heads, which is ", options.heads));
  }
  if (options.d_model % 2 != 0) {
    throw InvalidArgument(concat("--d-model is ", options.d_model,
                                 "; it must be even, for sines and cosines of the positions"));
  }
  if (options.tokenizer == "bpe" && options.vocab_size < 260) {
    throw InvalidArgument(concat("--vocab-size is ", options.vocab_size,
                                 "; with --tokenizer bpe it must be at least 260: the bytes and "
                                 "four marks"));
  }
  try {
    lockstep::TrackingOptions tracking;
    lockstep::choose_sinks(tracking, options.track);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--track is ", options.track, ": ", error.what()));
  }
}

}  // namespace

std::optional<std::int64_t> epoch_number(const std::string& word) {
  std::int64_t number = 0;
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, number);
  if (error != std::errc() || stopped != end || number < 0) return std::nullopt;
  return number;
}

Invocation parse_command_line(const std::vector<std::string>& arguments) {
  Invocation invocation;
  std::vector<std::string> rest = arguments;
  if (!rest.empty() && (rest[0] == "infer" || rest[0] == "train")) {
    if (rest[0] == "infer") invocation.command = Command::infer;
    rest.erase(rest.begin());
  }
  const auto command = static_cast<unsigned>(invocation.command);
  const auto given = program_options::read_words(rest, all_options(), command);
  invocation.help = given.help;
  if (given.help) return invocation;
  Values config;
  if (!given.config_file.empty()) {
    config = program_options::read_config(given.config_file, all_options(), command);
  }
  const auto set = [&](const Values& values) {
    program_options::apply(invocation.options, values, all_options(), command);
  };
  if (invocation.command == Command::infer) {
    set(config);
    set(given.values);
    invocation.sentences = given.positionals;
    check_preload("--weights", invocation.options.weights, /*none_is_known=*/false);
    return invocation;
  }
  if (!given.positionals.empty()) {
    throw InvalidArgument(
        concat("\"", given.positionals.front(), "\" is one word too many (see --help)"));
  }
  const bool has_data = given.values.contains("data") ||
                        (config.contains("data") && config.find("data")->second != "");
  if (!has_data) set(embedded_defaults());
  set(config);
  set(given.values);
  check(invocation.options);
  return invocation;
}

Options read_stored_options(const std::string& path) {
  Options options;
  program_options::apply(options, program_options::read_config(path, all_options(), kTrainBit),
                         all_options(), kTrainBit);
  return options;
}

std::string help_text(Command command) {
  const Options defaults;
  std::string text(command == Command::train ? kTrainIntroduction : kInferIntroduction);
  text +=
      program_options::describe_options(all_options(), static_cast<unsigned>(command), &defaults);
  if (command == Command::train) {
    text +=
        "Without --data other defaults hold, which RUN/config.json has afterwards.\n"
        "SIGTERM saves and ends the program with code 75; started again, it goes on.\n";
  }
  return text;
}

nlohmann::ordered_json effective_config(const Options& options) {
  return program_options::all_values(options, all_options(), kTrainBit);
}

std::string changed_options(const Options& before, const Options& now) {
  std::string changes;
  for (const program_options::OptionSpec& option : all_options()) {
    if (!option.is_known_to(Command::train) || kHarmless.contains(option.name)) continue;
    const auto then = program_options::get_option(before, option);
    const auto is = program_options::get_option(now, option);
    if (then == is) continue;
    changes += concat(changes.empty() ? "" : ", ", "--", option.name, " was ", then.dump(),
                      " and is now ", is.dump());
  }
  return changes;
}

}  // namespace translate
