#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/unique_fd.h"

namespace lockstep {

/// All bytes of a file, read-only. Copies share them.
class FileContent {
 public:
  /// The file's own pages, read when they are touched: quick to open and to look at. A file that is
  /// cut short by somebody else meanwhile, or a disk that fails, ends the process; so it is for
  /// looking (`lockstep snapshot`), not for training runs. Throws SystemError.
  static FileContent map(const std::string& path);

  /// A copy in memory. Throws SystemError.
  static FileContent read(const std::string& path);

  std::span<const std::byte> bytes() const { return bytes_; }

  /// Keeps the bytes alive.
  const std::shared_ptr<const void>& owner() const { return owner_; }

 private:
  FileContent(std::shared_ptr<const void> owner, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}

  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
};

/// A regular file opened for reading, and its length. Throws SystemError, and InvalidArgument for a
/// folder.
struct OpenedFile {
  UniqueFd fd;
  std::uint64_t bytes = 0;
};
OpenedFile open_to_read(const std::string& path);

/// Fills `into` from `offset` on. Throws SystemError; also when the file is shorter.
void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> into, const std::string& path);

/// A small text file. Throws InvalidArgument when it is longer than `limit`.
std::string read_text_file(const std::string& path, std::size_t limit);

}  // namespace lockstep
