#include "archive/file_content.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>

#include "lockstep/error.h"

namespace lockstep {

OpenedFile open_to_read(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno(concat("cannot open '", path, "'"));
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) throw_errno(concat("cannot look at '", path, "'"));
  if (!S_ISREG(status.st_mode)) throw InvalidArgument(concat("'", path, "' is not a file"));
  return {std::move(fd), static_cast<std::uint64_t>(status.st_size)};
}

void read_exactly(int fd, std::uint64_t offset, std::span<std::byte> into,
                  const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // Linux reads at most 2 GiB at a time
  while (!into.empty()) {
    const ssize_t got =
        ::pread(fd, into.data(), std::min(into.size(), kMost), static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      throw_errno(concat("cannot read '", path, "'"));
    }
    if (got == 0) {
      throw SystemError(
          concat("'", path, "' ends at byte ", offset, ", ", into.size(), " before its end"));
    }
    offset += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text_file(const std::string& path, std::size_t limit) {
  const OpenedFile file = open_to_read(path);
  if (file.bytes > limit) {
    throw InvalidArgument(
        concat("'", path, "' has ", file.bytes, " bytes; at most ", limit, " are expected"));
  }
  std::string text(file.bytes, '\0');
  read_exactly(file.fd.get(), 0, std::as_writable_bytes(std::span(text)), path);
  return text;
}

FileContent FileContent::map(const std::string& path) {
  const OpenedFile file = open_to_read(path);
  if (file.bytes == 0) return {nullptr, {}};
  void* address = ::mmap(nullptr, file.bytes, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (address == MAP_FAILED) throw_errno(concat("cannot map '", path, "'"));
  std::shared_ptr<const void> owner(
      address, [bytes = file.bytes](void* mapped) { ::munmap(mapped, bytes); });
  return {std::move(owner), {static_cast<const std::byte*>(address), file.bytes}};
}

FileContent FileContent::read(const std::string& path) {
  const OpenedFile file = open_to_read(path);
  // make_shared would fill the memory with zeros first.
  std::shared_ptr<std::byte[]> memory(new std::byte[file.bytes]);
  read_exactly(file.fd.get(), 0, {memory.get(), file.bytes}, path);
  const std::span<const std::byte> bytes(memory.get(), file.bytes);
  return {std::move(memory), bytes};
}

}  // namespace lockstep
