#include "run_directory.h"

#include <filesystem>
#include <set>
#include <string_view>

#include "command_line.h"
#include "core/durable_file.h"
#include "lockstep/error.h"

namespace train_llm {
namespace {

namespace fs = std::filesystem;
using lockstep::concat;
using lockstep::InvalidArgument;

// Options that say how a run is watched or started, not what it computes.
const std::set<std::string_view> kHarmless = {
    "ranks",     "num-epochs",  "max-steps",       "time-limit",  "num-workers",     "log-freq",
    "ckpt-freq", "keep-last",   "resume",          "samples",     "no-progress",     "save-dir",
    "cache-dir", "cache-limit", "flat-checkpoint", "flat-prefix", "experiment-name", "eval-freq",
    "device",    "track",       "wandb-runs",      "defer-init",  "shard-copies"};

}  // namespace

RunDirectory RunDirectory::chosen(const Options& options) {
  return RunDirectory(options.save_dir + "/" + options.experiment_name);
}

bool RunDirectory::has_model() const {
  return fs::exists(model_config()) && fs::exists(tokenizer());
}

Options RunDirectory::stored_options() const {
  return read_stored_options(config());
}

void RunDirectory::check_same(const lockstep::Gpt2Config& model,
                              const lockstep::Tokenizer& tokenizer) const {
  if (!has_model()) return;
  const auto refuse = [this](const char* what, std::int64_t there, std::int64_t here) {
    throw InvalidArgument(concat("the run in ", path(), " has another ", what, there, " there, ",
                                 here, " here); name another --experiment-name"));
  };
  const auto theirs = lockstep::Tokenizer::load(this->tokenizer());
  if (theirs.fingerprint() != tokenizer.fingerprint()) {
    refuse("tokenizer (entries: ", theirs.size(), tokenizer.size());
  }
  auto stored = lockstep::Gpt2Config::from_file(model_config());
  stored.embd_pdrop = model.embd_pdrop;
  stored.attn_pdrop = model.attn_pdrop;
  stored.resid_pdrop = model.resid_pdrop;
  if (!(stored == model)) {
    refuse("model (parameters: ", stored.parameter_count(), model.parameter_count());
  }
}

void RunDirectory::write(const Options& options, const lockstep::Gpt2Config& model,
                         const lockstep::Tokenizer& tokenizer) const {
  program_runs::make_folder(path() + "/model");
  tokenizer.save(this->tokenizer());
  lockstep::write_durably(model_config(), model.to_json());
  lockstep::write_durably(config(), effective_config(options).dump(2) + "\n");
}

std::string changed_options(const Options& before, const Options& now) {
  std::string changes;
  for (const OptionSpec& option : all_options()) {
    if (!option.is_known_to(Command::train) || kHarmless.contains(option.name)) continue;
    const auto then = get_option(before, option), is = get_option(now, option);
    if (then == is) continue;
    changes += concat(changes.empty() ? "" : ", ", "--", option.name, " was ", then.dump(),
                      " and is now ", is.dump());
  }
  return changes;
}

}  // namespace train_llm
