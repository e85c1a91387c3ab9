#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/unique_fd.h"

namespace lockstep {

struct FolderEntry {
  enum class Kind { file, folder, link, other };

  std::string name;
  Kind kind = Kind::other;
  std::int64_t bytes = 0;
  double changed = 0;  // seconds since 1970
};

/// Whether `path` is relative and has plain names only: no "..", no ".", no empty name, no NUL.
bool is_plain_path(std::string_view path);

/// Files below one directory, and nowhere else.
///
/// Paths are relative to it. They are opened name by name, and no link is followed on the way, so
/// that nothing that is put into the directory leads out of it, not even while it is being read.
/// Nothing is ever written. Thread-safe.
class RootFolder {
 public:
  /// Throws InvalidArgument where there is no such directory.
  explicit RootFolder(const std::string& path);

  const std::string& path() const { return path_; }

  /// A regular file, for reading; nothing where there is none, or the path is not plain.
  UniqueFd open_file(std::string_view path) const;

  /// "" is the directory itself.
  UniqueFd open_folder(std::string_view path) const;

  /// In the order of names, at most `limit` of them; empty where there is no such folder.
  std::vector<FolderEntry> list(std::string_view path, std::size_t limit = 10'000) const;

  /// What a link says; it is not followed.
  std::string link_target(std::string_view path) const;

  /// The first `limit` bytes of a file; std::nullopt where there is none.
  std::optional<std::string> read(std::string_view path, std::size_t limit) const;

 private:
  UniqueFd open_below(std::string_view path, int flags) const;

  std::string path_;
  UniqueFd root_;
};

/// Both with a slash between them where neither is empty.
std::string join_path(std::string_view folder, std::string_view name);

}  // namespace lockstep
