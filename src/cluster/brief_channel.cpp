#include "cluster/brief_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{30};
constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

// On a network disk a file appears later than those who were told of it.
UniqueFd open_patiently(const std::string& path) {
  const auto deadline = Clock::now() + kPatience;
  for (;;) {
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (file) return file;
    if (errno != ENOENT || Clock::now() > deadline) {
      throw_errno(concat("cannot read the brief '", path,
                         "'; the job's working directory must be on a disk that all nodes share"));
    }
    ::usleep(100'000);
  }
}

std::string read_brief_file(const std::string& path) {
  const UniqueFd file = open_patiently(path);
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw_errno(concat("cannot read the brief '", path, "'"));
  if (status.st_uid != ::getuid() || (status.st_mode & 077) != 0) {
    throw SystemError(concat("the brief '", path, "' is refused: others could have written it"));
  }
  std::string text;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_errno(concat("cannot read the brief '", path, "'"));
    if (count == 0) break;
    text.append(part.data(), static_cast<std::size_t>(count));
    if (text.size() > kMaxBytes) throw SystemError("the brief is too long");
  }
  ::unlink(path.c_str());  // it holds the secret
  return text;
}

// Out of the way of workers, which must not read from it.
UniqueFd take_standard_input() {
  UniqueFd moved(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!moved) throw_errno("cannot take over standard input");
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (null) ::dup2(null.get(), STDIN_FILENO);
  return moved;
}

std::string read_line(int fd) {
  const auto deadline = Clock::now() + kPatience;
  std::string text;
  std::array<char, 65536> part;
  while (!text.ends_with('\n')) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) == 0) {
      throw SystemError(
          "no brief came on standard input; `lockstep run` starts agents, nobody else");
    }
    const ssize_t count = ::read(fd, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw SystemError(
          "standard input ended before the brief did; `lockstep run` starts agents, nobody else");
    }
    text.append(part.data(), static_cast<std::size_t>(count));
    if (text.size() > kMaxBytes) throw SystemError("the brief is too long");
  }
  return text;
}

}  // namespace

ReceivedBrief receive_brief(const std::optional<std::string>& file,
                            const Environment& environment) {
  if (file) return {.text = read_brief_file(*file), .lifeline = {}};
  UniqueFd input = take_standard_input();
  if (const auto text = environment.get(kBriefVariable)) {
    return {.text = *text, .lifeline = std::move(input)};
  }
  std::string text = read_line(input.get());
  return {.text = std::move(text), .lifeline = std::move(input)};
}

}  // namespace lockstep
