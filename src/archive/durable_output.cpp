#include "archive/durable_output.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "archive/directory_lock.h"
#include "core/durable_file.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kPieceBytes = 16 << 20;
constexpr std::size_t kBlockBytes = 4096;       // what disks want writes to be multiples of
constexpr std::uint64_t kDirectFrom = 1 << 20;  // smaller files gain nothing
// How much may wait for the disk in the page cache: a gigabyte at once would slow down everybody.
constexpr std::uint64_t kWritebackBytes = 32 << 20;

bool has_no_links(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS;
}

bool is_aligned(const std::byte* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kBlockBytes == 0;
}

std::byte* aligned_memory() {
  void* memory =
      ::mmap(nullptr, kPieceBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw_errno(concat("cannot get ", kPieceBytes, " bytes of memory"));
  return static_cast<std::byte*>(memory);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

constexpr std::string_view kTemporaryEnd = ".tmp-p";

// What processes of this machine that were killed have left of their attempts at this file.
void remove_attempts_of_the_dead(const std::string& path) {
  const std::string start = path.substr(path.rfind('/') + 1).append(kTemporaryEnd);
  const std::string end = "@" + host_name();
  std::vector<std::filesystem::path> attempts;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder_of(path), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(start) || !name.ends_with(end)) continue;
    const auto pid =
        parse_integer<pid_t>(name.substr(start.size(), name.size() - start.size() - end.size()));
    if (!pid || *pid <= 0) continue;
    const bool lives = ::kill(*pid, 0) == 0 || errno != ESRCH;
    if (!lives || *pid == ::getpid()) attempts.push_back(entry->path());
  }
  for (const std::filesystem::path& attempt : attempts) ::unlink(attempt.c_str());
}

}  // namespace

void DurableOutput::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, kPieceBytes);
}

DurableOutput::DurableOutput(std::string path, std::uint64_t bytes)
    : path_(std::move(path)), bytes_(bytes) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  if (bytes >= kDirectFrom) {
    fd_ = UniqueFd(::open(path_.c_str(), kFlags | O_DIRECT, 0644));
    direct_ = static_cast<bool>(fd_);
    // Some file systems make the file and then refuse.
    if (!direct_ && errno == EINVAL) ::unlink(path_.c_str());
  }
  if (!fd_) fd_ = UniqueFd(::open(path_.c_str(), kFlags, 0644));
  if (!fd_) throw_errno(concat("cannot make '", path_, "'"));
  buffer_.reset(aligned_memory());
  if (bytes == 0) return;
  while (::fallocate(fd_.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return;  // writing will show whether it fits
    throw_errno(concat("cannot reserve ", bytes, " bytes for '", path_, "'"));
  }
}

void DurableOutput::append(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(bytes.size() <= bytes_ - accepted_, path_, " is longer than announced");
  accepted_ += bytes.size();
  // From the given bytes, not from what the file says: finish() compares the two.
  checksum_.update(bytes);
  if (!direct_ && buffered_ == 0) return write_all(bytes);
  while (!bytes.empty()) {
    std::size_t taken = 0;
    if (buffered_ == 0 && is_aligned(bytes.data()) && bytes.size() >= kBlockBytes) {
      taken = bytes.size() / kBlockBytes * kBlockBytes;
      write_all(bytes.first(taken));
    } else {
      taken = std::min(bytes.size(), kPieceBytes - buffered_);
      std::memcpy(buffer_.get() + buffered_, bytes.data(), taken);
      buffered_ += taken;
      // As soon as the buffer ends at a block, what follows may be written from where it is.
      if (buffered_ % kBlockBytes == 0) write_buffer(buffered_);
    }
    bytes = bytes.subspan(taken);
  }
}

void DurableOutput::write_buffer(std::size_t bytes) {
  buffered_ = 0;
  write_all({buffer_.get(), bytes});
}

void DurableOutput::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    const ssize_t count = ::write(fd_.get(), piece.data(), piece.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL && direct_) {
        leave_direct();
        continue;
      }
      throw_errno(concat("cannot write '", path_, "'"));
    }
    written_ += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    if (!direct_ && written_ - flushed_ >= kWritebackBytes) {
      // Only a hint; fdatasync() is what counts.
      ::sync_file_range(fd_.get(), static_cast<off_t>(flushed_),
                        static_cast<off_t>(written_ - flushed_), SYNC_FILE_RANGE_WRITE);
      flushed_ = written_;
    }
  }
}

// The file system does not like the size or the place of a block: on as with any other file.
void DurableOutput::leave_direct() {
  direct_ = false;
  const int flags = ::fcntl(fd_.get(), F_GETFL);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) != 0) {
    throw_errno(concat("cannot write '", path_, "'"));
  }
}

Manifest::File DurableOutput::finish() {
  LOCKSTEP_CHECK(accepted_ == bytes_, path_, " has ", accepted_, " of ", bytes_, " bytes");
  if (buffered_ > 0) {
    const std::size_t rounded = (buffered_ + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    std::memset(buffer_.get() + buffered_, 0, rounded - buffered_);
    write_buffer(rounded);
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
      throw_errno(concat("cannot cut '", path_, "' to its length"));
    }
  }
  if (::fdatasync(fd_.get()) != 0) throw_errno(concat("cannot bring '", path_, "' to the disk"));
  const std::uint64_t expected = checksum_.value();
  verify(expected);
  // Network file systems tell some errors only here.
  if (::close(fd_.release()) != 0 && errno != EINTR) {
    throw_errno(concat("cannot close '", path_, "'"));
  }
  return {.bytes = bytes_, .checksum = expected};
}

void DurableOutput::verify(std::uint64_t expected) {
  // What comes back should be the disk's copy and not the one in memory.
  if (!direct_) ::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  Checksum found;
  for (std::uint64_t offset = 0; offset < bytes_;) {
    const ssize_t count =
        ::pread(fd_.get(), buffer_.get(), kPieceBytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EINVAL && direct_) {
      leave_direct();
      continue;
    }
    if (count < 0) throw_errno(concat("cannot read '", path_, "' back"));
    if (count == 0) break;
    const auto read = std::min(static_cast<std::uint64_t>(count), bytes_ - offset);
    found.update({buffer_.get(), read});
    offset += read;
  }
  if (found.value() != expected) {
    throw SystemError(concat("'", path_, "' reads back differently from what was written"));
  }
}

void replace_durably(const std::string& path, std::uint64_t bytes,
                     const std::function<void(DurableOutput&)>& write) {
  remove_attempts_of_the_dead(path);
  const std::string temporary = concat(path, kTemporaryEnd, ::getpid(), "@", host_name());
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
  sync_directory(folder_of(path));
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
