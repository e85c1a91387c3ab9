#include "launch/line_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>

#include "core/unique_fd.h"
#include "launch/terminal_text.h"

namespace lockstep {

void LineTail::add(std::string_view text) {
  const std::lock_guard lock(mutex_);
  while (!text.empty()) {
    const std::size_t stop = text.find_first_of("\r\n");
    const std::string_view segment = text.substr(0, stop);
    if (!segment.empty()) {
      if (std::exchange(rewind_, false)) {
        line_.clear();
        cut_ = false;
      }
      const std::size_t room = kTailLineBytes - std::min(line_.size(), kTailLineBytes);
      line_ += segment.substr(0, room);
      cut_ |= segment.size() > room;
      begun_ = true;
    }
    if (stop == std::string_view::npos) return;
    if (text[stop] == '\n') {
      end_line();
    } else {
      rewind_ = true;
    }
    text.remove_prefix(stop + 1);
  }
}

void LineTail::end_line() {
  lines_.push_back(current());
  if (lines_.size() > kTailLines) lines_.pop_front();
  line_.clear();
  cut_ = begun_ = rewind_ = false;
}

std::string LineTail::current() const {
  // Cut between characters, not between bytes.
  return cut_ ? clipped(line_ + ' ', line_.size()) : line_;
}

std::vector<std::string> LineTail::lines() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result(lines_.begin(), lines_.end());
  if (begun_) {
    result.push_back(current());
    if (result.size() > kTailLines) result.erase(result.begin());
  }
  return result;
}

std::vector<std::string> file_tail(const std::string& path, std::size_t lines, std::size_t from) {
  constexpr std::size_t kWindow = kTailLines * kTailLineBytes * 2;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status = {};
  if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto size = static_cast<std::size_t>(status.st_size);
  const std::size_t begin = std::max(from, size > kWindow ? size - kWindow : 0);
  if (begin >= size) return {};
  std::string text(size - begin, '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), static_cast<off_t>(begin));
  if (count <= 0) return {};
  text.resize(static_cast<std::size_t>(count));
  // The window may begin in the middle of a line.
  if (begin > from) text.erase(0, text.find('\n') == std::string::npos ? 0 : text.find('\n') + 1);
  LineTail tail;
  tail.add(text);
  std::vector<std::string> result = tail.lines();
  if (result.size() > lines) {
    result.erase(result.begin(), result.end() - static_cast<std::ptrdiff_t>(lines));
  }
  return result;
}

}  // namespace lockstep
