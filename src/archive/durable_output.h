#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "archive/manifest.h"
#include "core/checksum.h"
#include "core/unique_fd.h"

namespace lockstep {

/// A new file that is known to be on the disk, and to be what was meant, when finish() returns.
/// Everything throws SystemError when the system refuses.
///
/// Large files are written past the page cache where the file system can do that: it is twice as
/// fast, leaves the memory to training, and what is read back is certainly the disk's copy.
class DurableOutput {
 public:
  /// The file must not exist. Its space is reserved at once, so that a disk that is too full shows
  /// before anything is written.
  DurableOutput(std::string path, std::uint64_t bytes);

  /// Quickest where the bytes lie at a multiple of 4096 in memory and in the file.
  void append(std::span<const std::byte> bytes);

  /// Waits for the disk, reads everything back and compares. Call when all bytes are there.
  Manifest::File finish();

 private:
  void write_all(std::span<const std::byte> bytes);
  void write_buffer(std::size_t bytes);
  void leave_direct();
  void verify(std::uint64_t expected);

  struct Unmap {
    void operator()(std::byte* memory) const;
  };

  std::string path_;
  UniqueFd fd_;
  std::uint64_t bytes_;
  bool direct_ = false;         // past the page cache: only whole blocks can be written
  std::uint64_t accepted_ = 0;  // by append()
  std::uint64_t written_ = 0;
  std::uint64_t flushed_ = 0;  // through the page cache: handed to the disk, perhaps not there yet
  Checksum checksum_;
  std::unique_ptr<std::byte, Unmap> buffer_;
  std::size_t buffered_ = 0;
};

/// Puts a file of `bytes` bytes at `path`, which then has its old content or all of the new, also
/// after a crash: written under a temporary name beside it by `write`, finished and renamed. What
/// processes that were killed on the way have left beside it goes.
void replace_durably(const std::string& path, std::uint64_t bytes,
                     const std::function<void(DurableOutput&)>& write);

/// Makes the names in a folder durable. Throws SystemError.
void sync_directory(const std::string& path);

/// Makes `name` in `directory` point to `target` in one step: a relative link, so that paths such
/// as latest/model.safetensors work and the directory can be moved; where the file system has no
/// links, a file with the target's name. Throws SystemError.
void move_pointer(const std::string& directory, const std::string& name, const std::string& target);

}  // namespace lockstep
