#include "program_runs/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace program_runs {

namespace fs = std::filesystem;

bool RunFolder::has_config() const {
  return fs::exists(config());
}

std::optional<std::int64_t> RunFolder::newest_snapshot() const {
  return greatest_number(snapshots(), "step_");
}

void RunFolder::make() const {
  try {
    make_folder(path_);
  } catch (const lockstep::SystemError& error) {
    throw lockstep::InvalidArgument(
        lockstep::concat("the run directory, SAVE_DIR/NAME of --save-dir and --experiment-name, ",
                         "cannot be: ", error.what()));
  }
}

void make_folder(const std::string& path) {
  std::error_code problem;
  fs::create_directories(path, problem);
  if (problem) {
    throw lockstep::SystemError(lockstep::concat("cannot make ", path, ": ", problem.message()));
  }
}

std::optional<std::int64_t> greatest_number(const std::string& folder, std::string_view before,
                                            std::string_view after) {
  std::optional<std::int64_t> greatest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.size() < before.size() + after.size()) continue;
    if (!name.starts_with(before) || !name.ends_with(after)) continue;
    const auto number = lockstep::parse_integer<std::int64_t>(
        std::string_view(name).substr(before.size(), name.size() - before.size() - after.size()));
    if (number) greatest = std::max(greatest.value_or(*number), *number);
  }
  return greatest;
}

}  // namespace program_runs
