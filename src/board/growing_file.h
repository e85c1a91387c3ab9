#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "board/root_folder.h"

namespace lockstep {

/// A file of lines that another process writes on, read from where the last look ended.
///
/// A line counts once its newline is there. A file that was replaced or has become shorter begins
/// anew. Not thread-safe.
class GrowingFile {
 public:
  struct Reader {
    std::function<void()> begins_anew;
    /// The line without its newline, and where in the file it begins.
    std::function<void(std::string_view line, std::int64_t offset)> line;
  };

  explicit GrowingFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  /// Reads what has come since the last call. Returns whether anything has.
  bool poll(const RootFolder& root, const Reader& reader);

  std::int64_t bytes() const { return offset_; }  // of whole lines, so far
  double changed() const { return changed_; }     // seconds since 1970; 0: there is no file

 private:
  std::string path_;
  std::uint64_t device_ = 0, inode_ = 0;
  std::int64_t offset_ = 0;
  std::int64_t seen_ = 0;  // the file's length at the last look
  double changed_ = 0;
};

}  // namespace lockstep
