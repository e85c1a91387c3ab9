#include "core/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

void write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written >= 0) {
      content.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      throw_errno(concat("cannot write '", path, "'"));
    }
  }
}

void sync_folder_of(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  const UniqueFd fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
  // Some file systems cannot sync a folder. The rename has happened all the same.
  if (fd) ::fsync(fd.get());
}

void write_and_rename(const std::string& path, std::string_view content, bool sync) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd) throw_errno(concat("cannot make a file beside '", path, "'"));
  try {
    write_all(fd.get(), content, temporary);
    ::fchmod(fd.get(), 0644);
    if (sync && ::fsync(fd.get()) != 0 && errno != EINVAL) {
      throw_errno(concat("cannot sync '", temporary, "'"));
    }
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      throw_errno(concat("cannot rename '", temporary, "' to '", path, "'"));
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace

void write_durably(const std::string& path, std::string_view content) {
  write_and_rename(path, content, /*sync=*/true);
  sync_folder_of(path);
}

void replace_file(const std::string& path, std::string_view content) {
  write_and_rename(path, content, /*sync=*/false);
}

}  // namespace lockstep
