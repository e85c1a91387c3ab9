#include "archive/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>

#include "archive/file_content.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr auto kPause = std::chrono::milliseconds(20);

// For people; the lock itself is the kernel's.
void write_holder(int fd) {
  const std::string text = lock_holder_name() + "\n";
  if (::ftruncate(fd, 0) != 0) return;
  [[maybe_unused]] const ssize_t ignored = ::pwrite(fd, text.data(), text.size(), 0);
}

std::string read_holder(const std::string& path) {
  try {
    std::string text = read_text_file(path, 1024);
    while (text.ends_with('\n')) text.pop_back();
    if (!text.empty()) return text;
  } catch (const Error&) {
  }
  return "another process";
}

DirectoryLock failure(const std::string& what) {
  return {.outcome = DirectoryLock::Outcome::failed,
          .reason = concat(what, ": ", std::strerror(errno))};
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string lock_holder_name() {
  return concat(host_name(), " ", ::getpid());
}

DirectoryLock lock_directory(const std::string& directory, std::chrono::milliseconds patience) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    errno = error.value();
    return failure(concat("cannot make the directory '", directory, "'"));
  }
  const std::string path = concat(directory, "/.lock");
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) return failure(concat("cannot write to the directory '", directory, "'"));
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      write_holder(fd.get());
      return {.outcome = DirectoryLock::Outcome::held, .fd = std::move(fd)};
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return {.outcome = DirectoryLock::Outcome::unsupported};
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return {.outcome = DirectoryLock::Outcome::taken, .holder = read_holder(path)};
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep
