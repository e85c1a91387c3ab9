#include "core/crash_report.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace lockstep {
namespace {

constexpr std::size_t kMaxText = 8 << 10;
constexpr std::size_t kMaxStack = 32 << 10;

char error_path[PATH_MAX];  // empty: no file is wanted
char temporary_path[PATH_MAX];
char who[64];  // "lockstep: rank 1: "

std::atomic<pid_t> reporter = 0;  // the thread that reports
std::atomic<int> reporters_signal = 0;
std::atomic<bool> finished = false;

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count < 0 && errno != EINTR) {
      return false;
    }
    text.remove_prefix(count < 0 ? 0 : static_cast<std::size_t>(count));
  }
  return true;
}

// Written beside its place and moved there, so that an agent never reads half a file.
bool replace_file(std::string_view text) {
  const int fd = ::open(temporary_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return false;
  }
  const bool written = write_all(fd, text);
  const int code = errno;
  ::close(fd);
  errno = code;
  return written && std::rename(temporary_path, error_path) == 0;
}

void wait_for_reporter() {
  // The reporter ends the process, or finishes. Polling, since a signal handler may use no lock;
  // bounded, since the reporter may have failed at it.
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 10'000'000};
  for (int turn = 0; turn < 1000 && !finished; ++turn) {
    ::nanosleep(&kPause, nullptr);
  }
}

// libtorch appends its own backtrace to an error's text. It goes to the file, but is no line.
std::string_view without_torch_backtrace(std::string_view text) {
  return text.substr(0, text.find("\nException raised from "));
}

}  // namespace

void prepare_crash_report() {
  reporter = 0;
  reporters_signal = 0;
  finished = false;

  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  FixedText(error_path).add(path == nullptr ? "" : path);
  FixedText temporary(temporary_path);
  temporary.add(error_path).add(".").add_decimal(::getpid()).add(".tmp");
  if (temporary.truncated()) {
    error_path[0] = '\0';  // no file can have such a name
  }

  FixedText prefix(who);
  prefix.add("lockstep: ");
  const std::string_view rank = std::getenv("RANK") == nullptr ? "" : std::getenv("RANK");
  if (!rank.empty() && rank.size() < 12) {
    prefix.add("rank ").add_line(rank).add(": ");
  }
}

Claim claim_crash_report(int signal) {
  pid_t nobody = 0;
  const pid_t me = ::gettid();
  if (reporter.compare_exchange_strong(nobody, me)) {
    reporters_signal = signal;
    return Claim::mine;
  }
  if (reporter == me) {
    return Claim::again;
  }
  wait_for_reporter();
  return Claim::others;
}

int claimed_signal() {
  return reporters_signal;
}

void finish_crash_report() {
  finished = true;
}

void write_error_file(const Failure& failure) {
  if (error_path[0] == '\0') {
    return;
  }
  // Six letters for one is the most that escaping takes. The text stands twice in the file: as the
  // message, and at the end of the call stack, where Python has it and torchrun looks for it.
  static char json_storage[6 * (2 * kMaxText + kMaxStack) + 1024];
  const std::string_view text = failure.text.substr(0, kMaxText);
  FixedText json(json_storage);
  json.add(R"({"message": {"message": ")").add_json(failure.type).add(": ").add_json(text);
  json.add(R"(", "extraInfo": {"py_callstack": ")");
  if (!failure.stack.empty()) {
    json.add_json(failure.stack_title).add("\\n").add_json(failure.stack.substr(0, kMaxStack));
  }
  json.add_json(failure.type).add(": ").add_json(text).add(R"(", "timestamp": ")");
  json.add_decimal(static_cast<std::uint64_t>(::time(nullptr))).add("\"}}}\n");

  if (!replace_file(json.view())) {
    const char* reason = ::strerrordesc_np(errno);
    char line_storage[PATH_MAX + 256];
    FixedText line(line_storage);
    line.add(who).add("cannot write the error file '").add_line(error_path).add("': ");
    write_all(STDERR_FILENO, line.add(reason == nullptr ? "?" : reason).add("\n").view());
  }
}

void print_failure(const Failure& failure) {
  char storage[2048];
  FixedText line(storage);
  line.add(who).add_line(failure.type).add(": ");
  const std::string_view text = without_torch_backtrace(failure.text);
  constexpr std::size_t kLongest = 1500;
  line.add_line(text.substr(0, kLongest)).add(text.size() > kLongest ? "...\n" : "\n");
  // In one piece, so that lines of several ranks do not mix.
  write_all(STDERR_FILENO, line.view());
}

}  // namespace lockstep
