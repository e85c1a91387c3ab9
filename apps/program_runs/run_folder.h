#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace program_runs {

/// The folder of a run, as far as programs agree on it: config.json holds the options that the run
/// was last started with, snapshots/ what it goes on from.
class RunFolder {
 public:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  std::string snapshots() const { return path_ + "/snapshots"; }
  std::string config() const { return path_ + "/config.json"; }

  /// Throws InvalidArgument, with the options that name it, where it cannot be made.
  void make() const;
  /// Whether a run has begun here.
  bool has_config() const;
  /// The step of the newest snapshot.
  std::optional<std::int64_t> newest_snapshot() const;

 private:
  std::string path_;
};

/// With the folders above it. Throws SystemError.
void make_folder(const std::string& path);

/// The greatest number in names of a folder's entries: of "step_12" between what it begins and
/// what it ends with.
std::optional<std::int64_t> greatest_number(const std::string& folder, std::string_view before,
                                            std::string_view after = "");

}  // namespace program_runs
