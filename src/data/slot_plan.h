#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/dealing.h"

namespace lockstep {

/// Which samples a (step, slot, micro-batch) of one epoch gets. A pure function: nothing here
/// moves.
///
/// Samples are dealt over slots like cards, as Python's DistributedSampler deals them over ranks,
/// and each slot cuts its share into batches, as Python's BatchSampler does. Where batches are
/// given ready-made, whole batches are dealt instead.
class SlotPlan {
 public:
  struct Rules {
    std::int64_t batch_size = 1;
    bool drop_last = false;
    Dealing dealing = Dealing::kEven;
    int slots = 1;
    std::int64_t accumulate = 1;  // micro-batches a step takes from each slot
  };

  /// 0, 1, ..., size - 1: needs no memory.
  SlotPlan(const Rules& rules, std::int64_t size);
  /// In this order.
  SlotPlan(const Rules& rules, std::vector<std::int64_t> order);
  /// Ready-made batches.
  SlotPlan(const Rules& rules, std::vector<std::vector<std::int64_t>> batches);

  /// The same for every slot, so that slots stay in step.
  std::int64_t batches_per_slot() const { return batches_per_slot_; }
  std::int64_t steps() const;

  /// What a step takes from each slot; the last step of an epoch may take fewer than the others.
  std::int64_t micro_batches(std::int64_t step) const;

  /// Samples that all slots together get in the epoch, repeated ones included.
  std::int64_t samples() const;

  /// Empty where Dealing::kExact has nothing left for the slot.
  std::vector<std::int64_t> indices(std::int64_t step, int slot, std::int64_t micro_batch) const;

 private:
  std::int64_t share(int slot) const;
  std::int64_t batch_length(int slot, std::int64_t batch) const;

  Rules rules_;
  std::int64_t dealt_ = 0;  // what is dealt: samples, or ready-made batches
  std::vector<std::int64_t> order_;
  std::vector<std::vector<std::int64_t>> batches_;
  bool ready_made_ = false;
  std::int64_t batches_per_slot_ = 0;
};

/// The order in which one process goes through the batches of its slots: step by step, in a step
/// slot by slot, in a slot micro-batch by micro-batch. A turn is a place in this order.
class Turns {
 public:
  /// `batches_per_slot` below 0: no end is known (a stream).
  Turns(std::vector<int> slots, std::int64_t accumulate, std::int64_t batches_per_slot);

  struct Place {
    std::int64_t step = 0;
    int slot = 0;
    std::int64_t micro_batch = 0;
    bool last_in_step = false;
  };
  Place place(std::int64_t turn) const;
  std::int64_t first_turn(std::int64_t step) const;
  std::int64_t end() const;

 private:
  std::vector<int> slots_;
  std::int64_t accumulate_;
  std::int64_t batches_per_slot_;
};

}  // namespace lockstep
