#pragma once

#include <memory>
#include <vector>

#include "lockstep/process_group.h"
#include "train/slots.h"

namespace lockstep {

class OrderedReduction;

/// Adds a few numbers over all slots, in slot order: every process gets the same bits, however many
/// processes the slots are spread over.
///
/// One thread; every rank calls the same functions in the same order.
class SlotSums {
 public:
  SlotSums(ProcessGroup group, const SlotShare& share);
  SlotSums(const SlotSums&) = delete;
  SlotSums& operator=(const SlotSums&) = delete;
  ~SlotSums();

  /// One row for each slot of this process, in slot order, all of the same length on every rank.
  std::vector<double> add(const std::vector<std::vector<double>>& rows);

 private:
  std::vector<double> gather_and_add(const std::vector<std::vector<double>>& rows,
                                     std::size_t width);

  ProcessGroup group_;
  SlotShare share_;
  std::unique_ptr<OrderedReduction> ordered_;  // where each process has one slot
};

}  // namespace lockstep
