#include "tests/kernels/on_cpu/meeting.h"

#include <string_view>

#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {

bool Meeting::arrive(const char* call, int member, void* what) {
  if (ended_ > 0) {
    fail(words(call, " of a warp of which ", ended_, " threads have ended"));
  }
  if (waiting_.empty()) {
    call_ = call;
  } else if (std::string_view(call) != call_) {
    fail(words(call, " while others of its warp are in ", call_));
  }
  brought_[static_cast<std::size_t>(member)] = what;
  if (waiting_.size() + 1 == brought_.size()) return true;
  waiting_.push_back(&machine().thread());
  machine().wait({.kind = Wait::Kind::collective, .call = call});
  return false;
}

void Meeting::dismiss() {
  for (Fiber* fiber : waiting_) machine().wake(*fiber);
  waiting_.clear();
}

void Meeting::leave() {
  ++ended_;
  if (!waiting_.empty()) {
    fail(words("ended while others of its warp wait in ", call_));
  }
}

}  // namespace lockstep::kernels::on_cpu
