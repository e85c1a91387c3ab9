// Saves one snapshot, as a training run would: save_helper DIRECTORY STEP [hold]
//
// Prints "saved", "failed: why" or "refused: who". With "hold" it keeps the directory until its
// input ends. Under the fault library, faults begin when the directory has been taken.
#include <dlfcn.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "archive/directory_lock.h"
#include "lockstep/error.h"
#include "tests/archive/some_files.h"

using namespace lockstep;

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string directory = argv[1];
  const DirectoryLock lock = lock_directory(directory, std::chrono::milliseconds(50));
  if (lock.outcome == DirectoryLock::Outcome::taken) {
    std::printf("refused: %s\n", lock.holder.c_str());
    return 4;
  }
  using Arm = void (*)();
  if (const auto arm = reinterpret_cast<Arm>(::dlsym(RTLD_DEFAULT, "lockstep_fault_arm"))) arm();
  remove_leftovers(directory, lock.outcome == DirectoryLock::Outcome::held);
  try {
    lockstep::testing::save_some(
        directory, std::atoi(argv[2]),
        {.keep_last = 2,
         .warn = [](const std::string& line) { std::printf("warning: %s\n", line.c_str()); }},
        std::atoi(argv[3]));
    std::puts("saved");
  } catch (const Error& error) {
    std::printf("failed: %s\n", error.what());
    return 3;
  }
  if (argc > 4) {
    std::fflush(stdout);
    std::getchar();
  }
  return 0;
}
