#include "sim/planted.h"

#include <string>

namespace lockstep::sim {
namespace {

// State of the program, because the mutated code has no way to be handed anything.
std::string& planted_name() {
  static std::string name;
  return name;
}

}  // namespace

void plant(const char* name) {
  planted_name() = name;
}

bool planted(const char* name) {
  return planted_name() == name;
}

}  // namespace lockstep::sim
