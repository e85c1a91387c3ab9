#include "text/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Opened {
  UniqueFd fd;
  std::uint64_t bytes = 0;
};

Opened open_to_read(const std::string& path) {
  Opened opened{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))};
  if (!opened.fd) throw_errno(concat("cannot open '", path, "'"));
  struct stat about {};
  if (::fstat(opened.fd.get(), &about) != 0) throw_errno(concat("cannot look at '", path, "'"));
  if (!S_ISREG(about.st_mode)) throw InvalidArgument(concat("'", path, "' is not a file"));
  opened.bytes = static_cast<std::uint64_t>(about.st_size);
  return opened;
}

}  // namespace

std::string read_file(const std::string& path, std::uint64_t limit) {
  const Opened opened = open_to_read(path);
  if (opened.bytes > limit) {
    throw InvalidArgument(concat("'", path, "' has ", opened.bytes, " bytes; at most ", limit,
                                 " are expected of such a file"));
  }
  std::string content(opened.bytes, '\0');
  std::size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = ::read(opened.fd.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno != EINTR) throw_errno(concat("cannot read '", path, "'"));
    if (got == 0) break;  // cut short since it was opened
    if (got > 0) filled += static_cast<std::size_t>(got);
  }
  content.resize(filled);
  return content;
}

MappedFile::MappedFile(const std::string& path) {
  const Opened opened = open_to_read(path);
  if (opened.bytes == 0) return;  // nothing cannot be mapped
  void* pages = ::mmap(nullptr, opened.bytes, PROT_READ, MAP_SHARED, opened.fd.get(), 0);
  if (pages == MAP_FAILED) throw_errno(concat("cannot map '", path, "'"));
  owner_ = std::shared_ptr<const void>(pages, [bytes = opened.bytes](const void* mapped) {
    ::munmap(const_cast<void*>(mapped), bytes);
  });
  bytes_ = {static_cast<const std::byte*>(pages), opened.bytes};
}

}  // namespace lockstep
