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

void PackPace::packed(std::size_t bytes, Seconds taken) {
  constexpr double kNew = 0.1;
  const double rate = static_cast<double>(bytes) / std::max(taken.count(), 1e-9);
  packer_rate_ += kNew * (rate - packer_rate_);
  packed_bytes_ += bytes;
}

void PackPace::decide(Seconds now) {
  if (packing_) {
    if (packed_bytes_ >= kLookAgain) packing_ = false;
    return;
  }
  const double seconds = std::max((now - *since_).count(), 1e-9);
  packing_ = static_cast<double>(window_) / seconds * kTimesFaster < packer_rate_;
  packed_bytes_ = 0;
}

}  // namespace lockstep
