// One rank that joins its world, passes a barrier and leaves.
#include <cstdio>
#include <exception>

#include "lockstep/world.h"

int main() try {
  lockstep::World world = lockstep::init({.backend = "gloo", .device = "cpu"});
  world.barrier();
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
