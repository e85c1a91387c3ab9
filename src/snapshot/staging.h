#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "snapshot/snapshot_plan.h"

namespace lockstep {

/// Memory into which tensors are copied before a thread writes them. It is kept from one save to
/// the next: getting fresh pages from the kernel takes longer than copying into them.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Whether `plan` fits into what is there, or into memory that can be had without pushing the
  /// machine (or the container) out of memory.
  bool has_room_for(const SnapshotPlan& plan) const;

  /// Makes room; `touch` gets the pages from the kernel at once. Throws SystemError.
  void reserve(const SnapshotPlan& plan, bool touch);

  /// Copies all tensors, with all threads that ATen may use. Returns when they are there, also
  /// those of CUDA devices. Call reserve() before.
  void copy(const SnapshotPlan& plan);

  const std::byte* data() const { return data_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  bool is_pinned_ = false;
  at::Tensor pinned_;  // owns data_ where is_pinned_
};

/// Waits for what is queued on the current streams of the devices that the plan's tensors are on.
void wait_for_devices(const SnapshotPlan& plan);

/// How much this process could still take: the machine's MemAvailable, or less where its control
/// group allows less. The largest number where nobody says.
std::uint64_t available_memory();

}  // namespace lockstep
