#include "archive/durable_output.h"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "archive/file_content.h"
#include "core/durable_file.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kPieceBytes = 8 << 20;
// How much may wait for the disk in the page cache: a gigabyte at once would slow down everybody.
constexpr std::uint64_t kWritebackBytes = 32 << 20;

bool has_no_links(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS;
}

}  // namespace

DurableOutput::DurableOutput(std::string path, std::uint64_t bytes)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644)),
      bytes_(bytes) {
  if (!fd_) throw_errno(concat("cannot make '", path_, "'"));
  if (bytes == 0) return;
  while (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return;  // writing will show whether it fits
    throw_errno(concat("cannot reserve ", bytes, " bytes for '", path_, "'"));
  }
}

void DurableOutput::append(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(bytes.size() <= bytes_ - written_, path_, " is longer than announced");
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    const ssize_t count = ::write(fd_.get(), piece.data(), piece.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      throw_errno(concat("cannot write '", path_, "'"));
    }
    const auto done = static_cast<std::size_t>(count);
    // From the given bytes, not from what the file says: finish() compares the two.
    checksum_.update(piece.first(done));
    written_ += done;
    bytes = bytes.subspan(done);
    if (written_ - flushed_ >= kWritebackBytes) start_writeback();
  }
}

void DurableOutput::start_writeback() {
  // Only a hint; fdatasync() is what counts.
  ::sync_file_range(fd_.get(), static_cast<off_t>(flushed_),
                    static_cast<off_t>(written_ - flushed_), SYNC_FILE_RANGE_WRITE);
  flushed_ = written_;
}

Manifest::File DurableOutput::finish() {
  LOCKSTEP_CHECK(written_ == bytes_, path_, " has ", written_, " of ", bytes_, " bytes");
  if (::fdatasync(fd_.get()) != 0) throw_errno(concat("cannot bring '", path_, "' to the disk"));
  const std::uint64_t expected = checksum_.value();
  verify(expected);
  // Network file systems tell some errors only here.
  if (::close(fd_.release()) != 0 && errno != EINTR)
    throw_errno(concat("cannot close '", path_, "'"));
  return {.bytes = written_, .checksum = expected};
}

void DurableOutput::verify(std::uint64_t expected) {
  // What comes back should be the disk's copy and not the one in memory.
  ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kPieceBytes, bytes_));
  Checksum found;
  for (std::uint64_t offset = 0; offset < bytes_; offset += buffer.size()) {
    const auto part =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes_ - offset));
    read_exactly(fd_.get(), offset, part, path_);
    found.update(part);
  }
  if (found.value() != expected) {
    throw SystemError(concat("'", path_, "' reads back differently from what was written"));
  }
}

void replace_durably(const std::string& path, std::uint64_t bytes,
                     const std::function<void(DurableOutput&)>& write) {
  const std::string temporary = concat(path, ".tmp-p", ::getpid());
  ::unlink(temporary.c_str());  // of a process that had this number and ended early
  try {
    DurableOutput output(temporary, bytes);
    write(output);
    output.finish();
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw_errno(concat("cannot rename '", temporary, "' to '", path, "'"));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  const std::size_t slash = path.rfind('/');
  sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

void sync_directory(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_errno(concat("cannot open '", path, "'"));
  // EINVAL: the file system cannot, and has nothing to offer in its place.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_errno(concat("cannot sync '", path, "'"));
}

void move_pointer(const std::string& directory, const std::string& name,
                  const std::string& target) {
  const std::string path = concat(directory, "/", name);
  const std::string temporary = concat(directory, "/.", name, "-p", ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) {
    if (!has_no_links(errno)) throw_errno(concat("cannot make the link '", temporary, "'"));
    write_durably(path, target + "\n");
    return;
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    errno = error;
    throw_errno(concat("cannot move the link '", path, "'"));
  }
  sync_directory(directory);
}

}  // namespace lockstep
