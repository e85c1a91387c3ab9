#include "core/throw_point.h"

#include <typeinfo>

namespace lockstep {
namespace {

// Not on the stack of whoever catches, because the run-time gives the probe no way to reach it.
Backtrace noted;

}  // namespace

// The run-time (libstdc++ and its personality routine) asks a catch clause's type by this virtual
// function. Overriding it is how the library's own kinds of types differ from each other.
class ProbeType final : public std::type_info {
 public:
  ProbeType() : std::type_info("N8lockstep15ThrowPointProbeE") {}

  bool __do_catch(const std::type_info*, void**, unsigned) const override {
    capture(noted);
    return false;
  }
};

// The name under which a catch clause looks for ThrowPointProbe's type_info.
extern const ProbeType probe_type asm("_ZTIN8lockstep15ThrowPointProbeE");
const ProbeType probe_type;

void forget_throw_point() {
  noted.size = 0;
}

Backtrace& throw_point() {
  return noted;
}

}  // namespace lockstep
