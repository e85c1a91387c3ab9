#include "shm/pack_pace.h"

#include <gtest/gtest.h>

using lockstep::PackPace;

namespace {

constexpr std::size_t kPiece = 256 << 10;

/// A link, and a packer, of given rates in bytes per second.
class PacedLink {
 public:
  PacedLink(double rate, double packer) : rate_(rate), packer_(packer) {}

  /// Sends pieces, and hears an answer to each or to none. Returns how many were packed.
  int call(int pieces, bool answered) {
    int packed = 0;
    pace_.begin_call();
    now_ += 3;  // someone is late
    for (int piece = 0; piece < pieces; ++piece) {
      if (pace_.packs()) {
        pace_.packed(
            {.bytes = kPiece, .saved = kPiece / 6, .taken = PackPace::Seconds(kPiece / packer_)});
        ++packed;
      }
      now_ += kPiece / rate_;
      pace_.sent(kPiece, PackPace::Seconds(now_));
      if (answered) pace_.received(PackPace::Seconds(now_));
    }
    pace_.end_call(PackPace::Seconds(now_));
    now_ += 100;  // nothing is sent for a while
    return packed;
  }
  void set_rate(double rate) { rate_ = rate; }

 private:
  PackPace pace_;
  double rate_, packer_, now_ = 0;
};

constexpr double kMega = 1e6;

}  // namespace

TEST(PackPace, slow_links_are_packed_for_and_fast_ones_not) {
  PacedLink slow(117 * kMega, 3000 * kMega), fast(400 * kMega, 3000 * kMega);
  EXPECT_EQ(slow.call(20, true), 0);  // the first call tells
  EXPECT_EQ(fast.call(20, true), 0);
  for (int call = 0; call < 20; ++call) {
    EXPECT_EQ(slow.call(20, true), 20);
    EXPECT_EQ(fast.call(20, true), 0);
  }
}

TEST(PackPace, a_long_call_is_judged_before_its_end) {
  PacedLink slow(117 * kMega, 3000 * kMega);
  EXPECT_GT(slow.call(100, false), 50);
}

TEST(PackPace, short_calls_without_an_answer_tell_nothing) {
  PacedLink slow(117 * kMega, 3000 * kMega);
  for (int call = 0; call < 20; ++call) EXPECT_EQ(slow.call(16, false), 0);
}

TEST(PackPace, a_slow_packer_is_not_used_for_long) {
  PacedLink link(117 * kMega, 300 * kMega);
  int packed = 0;
  for (int call = 0; call < 400; ++call) packed += link.call(100, true);
  EXPECT_LT(packed, 4'000);  // of 40,000
}

TEST(PackPace, a_link_that_got_faster_is_found_out) {
  PacedLink link(117 * kMega, 3000 * kMega);
  link.call(100, true);
  EXPECT_EQ(link.call(100, true), 100);
  link.set_rate(2000 * kMega);
  const auto calls = PackPace::kLookAgain / (100 * kPiece) + 2;
  for (std::size_t call = 0; call < calls; ++call) link.call(100, true);
  EXPECT_EQ(link.call(100, true), 0);
}
