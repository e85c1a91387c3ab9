// Waits for ever in a function that tests look for. Its argument says how: "read" waits for a byte
// that never comes, "threads" does so with two more threads, "vfork" waits in the kernel for a
// child that never becomes another program, "loop" computes.
#include <sys/prctl.h>
#include <unistd.h>
#include <csignal>
#include <string_view>
#include <thread>

extern "C" {

[[gnu::noinline]] int lockstep_test_waits_here(int fd) {
  char letter = 0;
  const auto count = ::read(fd, &letter, 1);
  return static_cast<int>(count) + letter;  // after the call, so that this frame stays on the stack
}

[[gnu::noinline]] int lockstep_test_loops_here() {
  volatile unsigned count = 1;
  while (count != 0) count = count | 1;
  return 0;
}

[[gnu::noinline]] int lockstep_test_caller(int fd) {
  return lockstep_test_waits_here(fd) + 1;
}

[[gnu::noinline]] int lockstep_test_worker(int fd) {
  return lockstep_test_waits_here(fd) + 2;
}
}

namespace {

int wait_in_vfork(int fd) {
  const pid_t pid = ::vfork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    char letter = 0;
    [[maybe_unused]] const auto count = ::read(fd, &letter, 1);
    ::_exit(0);
  }
  return pid < 0 ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view mode = count > 1 ? arguments[1] : "read";
  int ends[2];
  if (::pipe(ends) != 0) {
    return 2;
  }
  if (mode == "loop") {
    return lockstep_test_loops_here() + 1;
  }
  if (mode == "vfork") {
    return wait_in_vfork(ends[0]);
  }
  std::jthread first;
  std::jthread second;
  if (mode == "threads") {
    first = std::jthread(lockstep_test_worker, ends[0]);
    second = std::jthread(lockstep_test_worker, ends[0]);
  }
  return lockstep_test_caller(ends[0]) & 1;
}
