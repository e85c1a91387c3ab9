#include "launch/version.h"

#include <cstring>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr char kPrefix[] = "lockstep version ";

// Behind a volatile pointer, so that the text stands in the program as a whole: `strings` finds out
// what an old copy is.
const char* volatile version_text = "lockstep version " LOCKSTEP_VERSION;

}  // namespace

std::string lockstep_version() {
  return version_text + std::strlen(kPrefix);
}

std::string unequal_versions(const std::string& host, const std::string& theirs) {
  return concat("the coordinator is lockstep ", lockstep_version(), ", ", host, " has lockstep ",
                theirs, ": install the same version on all nodes");
}

}  // namespace lockstep
