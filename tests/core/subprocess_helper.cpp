// Starts a long-lived program, says its pid on standard output, and waits to be killed. With the
// argument "thread" it starts it in a thread that ends at once.
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

#include "core/subprocess.h"

int main(int argc, char** argv) {
  std::optional<lockstep::Subprocess> child;
  const auto start = [&child] {
    child.emplace(lockstep::SubprocessOptions{.argv = {"sleep", "600"}});
  };
  if (argc > 1 && std::strcmp(argv[1], "thread") == 0) {
    std::thread(start).join();
  } else {
    start();
  }
  std::printf("%d\n", child->pid());
  std::fflush(stdout);
  child->wait();
  std::printf("ended\n");
  std::fflush(stdout);
  ::pause();
}
