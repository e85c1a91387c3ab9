#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace lockstep {

/// Decides whether packing what is sent pays: the time that the link saves by it must be more than
/// what processors need. Found out by pieces that are sent as they are; now and then some are
/// again, because links and machines change. Each sender decides for itself.
///
/// Times are the caller's, so that tests need no clock. Not thread-safe.
class PackPace {
 public:
  using Seconds = std::chrono::duration<double>;

  /// Whether the next piece shall be packed.
  bool packs() const { return packing_; }

  /// A call with peers begins or ends. Between two calls nothing is measured.
  void begin_call();
  void end_call(Seconds now);

  /// A piece has been sent, as it was or packed, or has been received. Up to the first one peers
  /// may have been late.
  void sent(std::size_t bytes, Seconds now);
  void received(Seconds now);

  /// Packing a piece took a processor so long, and so many bytes off it.
  struct Effort {
    std::size_t bytes = 0;  // as it was
    std::size_t saved = 0;
    Seconds taken{};
  };
  void packed(const Effort& effort);

  /// Of packing's time, which the link has to save: unpacking takes some, too, and the rest is for
  /// what it displaces.
  static constexpr double kTimesPacking = 2;
  /// What a link's rate is judged by: more than what systems take in before they send it. Less
  /// where the peer has answered to what was sent.
  static constexpr std::size_t kWindow = 8 << 20, kAnsweredWindow = 512 << 10;
  /// After so much the link is looked at again.
  static constexpr std::size_t kLookAgain = 512 << 20;

 private:
  void decide(Seconds now);
  bool pays() const { return link_rate_ * kTimesPacking < saving_rate_; }

  static constexpr double kUsualSaving = 3e8;  // of float32, on processors of some years ago

  bool packing_ = false;
  double link_rate_ = 0;               // bytes per second, of pieces as they were
  double saving_rate_ = kUsualSaving;  // bytes that a second of packing takes off
  std::optional<Seconds> since_;       // when the window began
  std::size_t window_ = 0;             // bytes sent in it
  bool answered_ = false;              // something was received in it
  std::size_t packed_bytes_ = 0;       // since the link was looked at
};

}  // namespace lockstep
