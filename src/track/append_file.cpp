#include "track/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {

AppendFile::AppendFile(std::string path) : path_(std::move(path)) {
  std::error_code problem;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), problem);
  if (problem) {
    throw SystemError(concat("cannot make the folder of ", path_, ": ", problem.message()));
  }
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
  if (!file_) throw_errno(concat("cannot open ", path_));
  struct stat status = {};
  if (::fstat(file_.get(), &status) != 0) throw_errno(concat("cannot look at ", path_));
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void AppendFile::flush() {
  if (buffer_.empty()) return;
  const std::string bytes = std::exchange(buffer_, {});
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int reason = written < 0 ? errno : ENOSPC;
      [[maybe_unused]] const int result = ::ftruncate(file_.get(), static_cast<off_t>(size_));
      errno = reason;
      throw_errno(concat("cannot write to ", path_));
    }
    done += static_cast<std::size_t>(written);
  }
  size_ += bytes.size();
}

}  // namespace lockstep
