#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "archive/manifest.h"

namespace lockstep {

// A directory of snapshots: step_<N>/ for each, and the links `latest` and `best`.

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kStateName = "state.json";
inline constexpr const char* kTensorSuffix = ".safetensors";
inline constexpr const char* kLatest = "latest";
inline constexpr const char* kBest = "best";

/// "step_1200".
std::string snapshot_name(std::int64_t step);
std::optional<std::int64_t> step_of_name(const std::string& name);

/// One snapshot as it is found: with its manifest, or with what is wrong with it.
struct FoundSnapshot {
  std::string name;  // in the directory
  std::string path;
  std::int64_t step = 0;
  std::optional<Manifest> manifest;
  std::string problem;  // empty: the manifest is sound; the other files have not been looked at
};

/// Newest first, that is by the manifests' sequence; those without a sound manifest come at the
/// end, highest step first. A directory that does not exist has none. Throws SystemError when it
/// cannot be read.
std::vector<FoundSnapshot> find_snapshots(const std::string& directory);

/// A single snapshot by its path. Throws InvalidArgument or SystemError when it is not there or its
/// manifest is damaged.
FoundSnapshot open_snapshot(const std::string& path);

/// Whether all files are there with the lengths of the manifest; what is wrong, or an empty string.
std::string find_missing_files(const FoundSnapshot& snapshot);

/// Reads everything and compares checksums. What is wrong, or an empty string.
std::string find_damage(const FoundSnapshot& snapshot);

/// The same for some of the files: every `step`-th from `first` on, by name.
std::string find_damage(const FoundSnapshot& snapshot, std::size_t first, std::size_t step);

/// The name of the snapshot that `latest` or `best` points to.
std::optional<std::string> read_pointer(const std::string& directory, const std::string& pointer);

}  // namespace lockstep
