#pragma once

#include <cstddef>
#include <vector>

#include "comm/peers.h"
#include "core/unique_fd.h"

namespace lockstep {

/// Tells, for the price of one system call, whether one of several processes of this machine has
/// ended.
class ProcessWatch {
 public:
  /// Throws Error where the kernel does not offer it, or a process has already ended.
  explicit ProcessWatch(const std::vector<PeerIdentity>& processes);

  bool any_ended() const;
  /// That of number `index`, in the order of the constructor's.
  bool has_ended(std::size_t index) const;

 private:
  std::vector<UniqueFd> descriptors_;
};

}  // namespace lockstep
