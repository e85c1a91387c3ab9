#include <iostream>

#include <lockstep/error.h>

int main() {
  try {
    throw lockstep::InvalidArgument(lockstep::concat("WORLD_SIZE is ", -1));
  } catch (const lockstep::Error& error) {
    std::cout << error.what() << '\n';
  }
  // A function of the library, so that it is really linked.
  try {
    lockstep::throw_errno("open");
  } catch (const lockstep::SystemError&) {
    std::cout << "core works\n";
  }
}
