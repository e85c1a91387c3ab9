#include "doctor/shared_mark.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/durable_file.h"
#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_since(Clock::time_point begin) {
  return static_cast<int>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count());
}

// What the file holds; a problem as an empty text with errno.
std::string content_of(const std::string& path, std::size_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return "";
  std::string text(most + 1, '\0');
  const ssize_t got = ::read(fd.get(), text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  errno = 0;
  return text;
}

MarkAnswer look(const std::string& path, const MarkQuestion& question) {
  const auto begin = Clock::now();
  while (true) {
    const std::string text = content_of(path, question.text.size());
    const int error = errno;
    const int time = milliseconds_since(begin);
    if (text == question.text) return {.after_ms = time};
    if (time >= question.limit_ms) {
      return {.problem = error != 0 ? std::strerror(error) : "it holds something else",
              .after_ms = time};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

MarkAnswer do_mark(const std::string& folder, const MarkQuestion& question) {
  if (folder.empty()) return {.problem = "this node was given no --shared-dir"};
  const std::string path = concat(folder, "/", question.name);
  if (question.action == MarkAction::look) return look(path, question);
  if (question.action == MarkAction::remove) {
    if (::unlink(path.c_str()) != 0) return {.problem = std::strerror(errno)};
    return {};
  }
  try {
    write_durably(path, question.text);
    return {};
  } catch (const Error& error) {
    return {.problem = error.what()};
  }
}

}  // namespace lockstep
