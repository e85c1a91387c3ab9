#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/unique_fd.h"

namespace lockstep {

/// A file that grows by whole records: what is added goes out in one write, and where only a part
/// of it finds room that part is taken back.
class AppendFile {
 public:
  /// Makes the folders and goes on at the end. Throws SystemError.
  explicit AppendFile(std::string path);

  void add(std::string_view bytes) { buffer_ += bytes; }
  /// Throws SystemError, and forgets what was added.
  void flush();

  /// With what was added.
  std::uint64_t size() const { return size_ + buffer_.size(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  UniqueFd file_;
  std::uint64_t size_ = 0;
  std::string buffer_;
};

}  // namespace lockstep
