#include "saved_model.h"

#include <filesystem>
#include <optional>

#include "lockstep/error.h"
#include "lockstep/module_state.h"
#include "lockstep/snapshot.h"
#include "run_directory.h"

namespace train_llm {
namespace {

namespace fs = std::filesystem;
using lockstep::concat;
using lockstep::InvalidArgument;

// "outputs/demo", "outputs/demo/snapshots" and "outputs/demo/snapshots/step_100" belong to one run.
std::optional<RunDirectory> run_of(const std::string& path) {
  fs::path folder = fs::path(path) / "x";
  for (int level = 0; level < 3; ++level) {
    folder = folder.parent_path();
    if (folder.empty()) folder = ".";
    RunDirectory run(folder.string());
    if (run.has_model()) return run;
  }
  return std::nullopt;
}

SavedModel load_from_run(const RunDirectory& run, const std::string& path) {
  const bool whole = fs::exists(RunDirectory(path).model_config());
  const std::string weights = whole ? run.snapshots() : path;
  if (!fs::exists(weights)) {
    throw InvalidArgument(concat(path, " has no snapshot yet: there is no ", weights));
  }
  const lockstep::Snapshot snapshot = lockstep::read_snapshot(weights);
  lockstep::Gpt2 model(lockstep::Gpt2Config::from_file(run.model_config()));
  const auto part = snapshot.parts.find("model");
  if (part == snapshot.parts.end()) {
    throw InvalidArgument(concat("the snapshot in ", weights, " has no part 'model'"));
  }
  lockstep::load_module_state(*model, part->second);
  return {.model = std::move(model),
          .tokenizer = lockstep::Tokenizer::load(run.tokenizer()),
          .options = run.stored_options(),
          .what = concat("step ", snapshot.step, " of ", run.path())};
}

}  // namespace

SavedModel load_saved_model(const std::string& path) {
  if (!fs::exists(path)) {
    throw InvalidArgument(concat("--snapshot is \"", path, "\", and there is no such directory"));
  }
  if (const auto run = run_of(path)) return load_from_run(*run, path);
  if (!fs::exists(path + "/config.json")) {
    throw InvalidArgument(concat("--snapshot is \"", path,
                                 "\", which is neither a run directory nor one of its snapshots "
                                 "nor a directory with config.json"));
  }
  return {.model = lockstep::load_gpt2(path),
          .tokenizer = lockstep::Tokenizer::load(path),
          .options = {},
          .what = path};
}

}  // namespace train_llm
