#include "launch/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// A line longer than this is cut in two by rotation.
constexpr std::size_t kLongestWholeLine = 64 << 10;

// Where it cannot be opened errno says why.
UniqueFd try_to_open(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0666));
}

}  // namespace

UniqueFd open_log_file(const std::string& path) {
  UniqueFd fd = try_to_open(path);
  if (!fd) throw_errno(concat("cannot open the log file '", path, "'"));
  return fd;
}

void LogFile::write(std::string_view text) {
  while (!text.empty()) {
    if (!open()) return lose(text.size());
    const std::size_t length = length_before_rotation(text);
    put(text.substr(0, length));
    text.remove_prefix(length);
    if (!text.empty()) rotate();
  }
}

bool LogFile::open() {
  if (fd_) return true;
  fd_ = try_to_open(options_.path);
  if (!fd_) {
    reason_ = std::generic_category().message(errno);
    return false;
  }
  struct stat status = {};
  size_ = ::fstat(fd_.get(), &status) == 0 ? static_cast<std::uintmax_t>(status.st_size) : 0;
  at_line_start_ = true;
  return true;
}

// How much of the text goes into the current file; the rest belongs into the next one.
std::size_t LogFile::length_before_rotation(std::string_view text) const {
  if (options_.max_bytes == 0 || size_ + text.size() <= options_.max_bytes) return text.size();
  const std::size_t room =
      options_.max_bytes > size_ ? static_cast<std::size_t>(options_.max_bytes - size_) : 0;
  if (const std::size_t fits = text.substr(0, room).rfind('\n'); fits != std::string_view::npos) {
    return fits + 1;
  }
  if (at_line_start_ && size_ > 0) return 0;
  // In the middle of a line: to its end, if that is near.
  const std::size_t end = text.substr(0, kLongestWholeLine).find('\n');
  if (end != std::string_view::npos) return end + 1;
  const bool line_fills_file = size_ >= options_.max_bytes + kLongestWholeLine;
  return line_fills_file ? 0 : std::min(text.size(), std::max(room, kLongestWholeLine));
}

void LogFile::put(std::string_view text) {
  if (text.empty()) return;
  if (lost_ > 0) {
    const std::string note = concat(at_line_start_ ? "" : "\n", "[lockstep: ", lost_,
                                    " bytes are missing here: ", reason_, "]\n");
    if (put_all(note) > 0) return lose(text.size());
    lost_ = 0;
  }
  const std::size_t rest = put_all(text);
  if (rest > 0) return lose(rest);
  at_line_start_ = text.back() == '\n';
}

std::size_t LogFile::put_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd_.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      reason_ = std::generic_category().message(errno);
      return text.size();
    }
    size_ += static_cast<std::uintmax_t>(written);
    at_line_start_ = false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

void LogFile::lose(std::size_t bytes) {
  lost_ += bytes;
  if (std::exchange(warned_, true)) return;
  options_.warn(concat("cannot write '", options_.path, "': ", reason_,
                       "; output is dropped until it can be written again"));
}

void LogFile::rotate() {
  fd_.reset();
  const auto name = [&](int number) { return concat(options_.path, ".", number); };
  for (int number = kRotatedLogs - 1; number >= 1; --number) {
    ::rename(name(number).c_str(), name(number + 1).c_str());  // absent ones are no error
  }
  if (::rename(options_.path.c_str(), name(1).c_str()) != 0) {
    options_.warn(concat("cannot rotate '", options_.path,
                         "': ", std::generic_category().message(errno), "; it goes on growing"));
    options_.max_bytes = 0;
  }
}

}  // namespace lockstep
