// A program that starts its own ranks, in the ways that spawn_test.cpp asks for.
#include "lockstep/spawn.h"

#include <csignal>
#include <cstdio>
#include <cstring>

#include <unistd.h>

#include "lockstep/record.h"
#include "lockstep/world.h"

using namespace lockstep;

namespace {

void greet(const char* word) {
  World world = init();
  const auto all = world.group().all_gather_string(concat(word, world.rank()));
  if (world.rank() == 0) {
    for (const auto& each : all) std::printf("%s ", each.c_str());
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "twice") {
    spawn([](int) { greet("a"); }, 2);
    spawn(
        [](int rank) {
          if (rank == 2) greet("b");
          if (rank != 2) greet("b");
        },
        3);
    std::printf("done\n");
  } else if (mode == "throw") {
    spawn(
        [](int rank) {
          World world = init();
          if (rank == 1) throw InvalidArgument("rank 1 has had enough");
          world.barrier();  // would wait for ever
        },
        3);
  } else if (mode == "kill") {
    spawn(
        [](int rank) {
          if (rank == 0) kill(getpid(), SIGKILL);
          pause();
        },
        2);
  } else if (mode == "nested") {
    spawn([](int) { spawn([](int) {}, 2); }, 1);
  } else if (mode == "zero") {
    spawn([](int) {}, 0);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return record(argc, argv, run);
}
