#include "shm/pack_pace.h"

#include <algorithm>

namespace lockstep {

void PackPace::begin_call() {
  since_.reset();
  window_ = 0;
  answered_ = false;
}

void PackPace::end_call(Seconds now) {
  if (window_ >= (answered_ ? kAnsweredWindow : kWindow)) decide(now);
  begin_call();
}

void PackPace::received(Seconds now) {
  if (!since_) since_ = now;
  answered_ = true;
}

void PackPace::sent(std::size_t bytes, Seconds now) {
  if (!since_) {
    since_ = now;
    return;
  }
  window_ += bytes;
  if (window_ >= kWindow) {
    decide(now);
    since_ = now;
    window_ = 0;
  }
}

void PackPace::packed(const Effort& effort) {
  constexpr double kNew = 0.1;
  const double rate = static_cast<double>(effort.saved) / std::max(effort.taken.count(), 1e-9);
  saving_rate_ += kNew * (rate - saving_rate_);
  packed_bytes_ += effort.bytes;
}

void PackPace::decide(Seconds now) {
  if (packing_) {
    packing_ = pays() && packed_bytes_ < kLookAgain;
    return;
  }
  link_rate_ = static_cast<double>(window_) / std::max((now - *since_).count(), 1e-9);
  packed_bytes_ = 0;
  packing_ = pays();
  // What was not worth it is tried again some day.
  constexpr double kForgotten = 0.01;
  saving_rate_ += kForgotten * (kUsualSaving - saving_rate_);
}

}  // namespace lockstep
