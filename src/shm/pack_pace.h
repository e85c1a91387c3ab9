#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace lockstep {

/// Decides whether packing what is sent pays: it takes a processor's time, so the link must be much
/// slower than the packer. Found out by pieces that are sent as they are; now and then some are
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

  /// Packing so many bytes took a processor so long.
  void packed(std::size_t bytes, Seconds taken);

  /// Packing and unpacking take turns with everything else on one thread.
  static constexpr double kTimesFaster = 8;
  /// What a link's rate is judged by: more than what systems take in before they send it. Less
  /// where the peer has answered to what was sent.
  static constexpr std::size_t kWindow = 8 << 20, kAnsweredWindow = 512 << 10;
  /// After so much the link is looked at again.
  static constexpr std::size_t kLookAgain = 512 << 20;

 private:
  void decide(Seconds now);

  bool packing_ = false;
  double packer_rate_ = 1.5e9;    // bytes per second, until one has been measured
  std::optional<Seconds> since_;  // when the window began
  std::size_t window_ = 0;        // bytes sent in it
  bool answered_ = false;         // something was received in it
  std::size_t packed_bytes_ = 0;  // since the link was looked at
};

}  // namespace lockstep
