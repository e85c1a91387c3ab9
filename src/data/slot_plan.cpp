#include "data/slot_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::int64_t divide_up(std::int64_t value, std::int64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

std::int64_t whole_or_all(std::int64_t value, std::int64_t by, bool drop_last) {
  return drop_last ? value / by : divide_up(value, by);
}

}  // namespace

SlotPlan::SlotPlan(const Rules& rules, std::int64_t size) : rules_(rules), dealt_(size) {
  batches_per_slot_ = whole_or_all(share(0), rules_.batch_size, rules_.drop_last);
}

SlotPlan::SlotPlan(const Rules& rules, std::vector<std::int64_t> order)
    : SlotPlan(rules, static_cast<std::int64_t>(order.size())) {
  order_ = std::move(order);
}

SlotPlan::SlotPlan(const Rules& rules, std::vector<std::vector<std::int64_t>> batches)
    : rules_(rules),
      dealt_(static_cast<std::int64_t>(batches.size())),
      batches_(std::move(batches)),
      ready_made_(true) {
  batches_per_slot_ = share(0);
}

// Of what is dealt, how much a slot gets. Slot 0 never gets less than another.
std::int64_t SlotPlan::share(int slot) const {
  if (rules_.dealing == Dealing::kEven) {
    return whole_or_all(dealt_, rules_.slots, rules_.drop_last);
  }
  return slot < dealt_ ? divide_up(dealt_ - slot, rules_.slots) : 0;
}

std::int64_t SlotPlan::steps() const {
  return divide_up(batches_per_slot_, rules_.accumulate);
}

std::int64_t SlotPlan::micro_batches(std::int64_t step) const {
  return std::clamp<std::int64_t>(batches_per_slot_ - step * rules_.accumulate, 0,
                                  rules_.accumulate);
}

std::int64_t SlotPlan::batch_length(int slot, std::int64_t batch) const {
  return std::clamp<std::int64_t>(share(slot) - batch * rules_.batch_size, 0, rules_.batch_size);
}

std::int64_t SlotPlan::samples() const {
  if (!ready_made_) {
    if (rules_.dealing == Dealing::kExact) return dealt_;
    return rules_.slots * std::min(share(0), batches_per_slot_ * rules_.batch_size);
  }
  std::int64_t total = 0;
  const std::int64_t hands = rules_.dealing == Dealing::kExact ? dealt_ : share(0) * rules_.slots;
  for (std::int64_t hand = 0; hand < hands; ++hand) {
    total += static_cast<std::int64_t>(batches_[hand % dealt_].size());
  }
  return total;
}

std::vector<std::int64_t> SlotPlan::indices(std::int64_t step, int slot,
                                            std::int64_t micro_batch) const {
  LOCKSTEP_CHECK(slot >= 0 && slot < rules_.slots, "slot ", slot, " of ", rules_.slots);
  const std::int64_t batch = step * rules_.accumulate + micro_batch;
  // Past the end the deal starts over from the front: that is the padding. With drop_last and with
  // exact dealing it is never reached.
  if (ready_made_) {
    if (batch >= share(slot)) return {};
    return batches_[(batch * rules_.slots + slot) % dealt_];
  }
  const std::int64_t length = batch_length(slot, batch);
  std::vector<std::int64_t> chosen;
  chosen.reserve(length);
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t position = ((batch * rules_.batch_size + i) * rules_.slots + slot) % dealt_;
    chosen.push_back(order_.empty() ? position : order_[position]);
  }
  return chosen;
}

Turns::Turns(std::vector<int> slots, std::int64_t accumulate, std::int64_t batches_per_slot)
    : slots_(std::move(slots)), accumulate_(accumulate), batches_per_slot_(batches_per_slot) {}

Turns::Place Turns::place(std::int64_t turn) const {
  const auto slots = static_cast<std::int64_t>(slots_.size());
  const std::int64_t step = turn / (slots * accumulate_);
  const std::int64_t in_step = turn % (slots * accumulate_);
  const std::int64_t micro_batches =
      batches_per_slot_ < 0 ? accumulate_
                            : std::min(accumulate_, batches_per_slot_ - step * accumulate_);
  return {.step = step,
          .slot = slots_[in_step / micro_batches],
          .micro_batch = in_step % micro_batches,
          .last_in_step = in_step == slots * micro_batches - 1};
}

std::int64_t Turns::first_turn(std::int64_t step) const {
  return std::min(step * static_cast<std::int64_t>(slots_.size()) * accumulate_, end());
}

std::int64_t Turns::end() const {
  if (batches_per_slot_ < 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(slots_.size()) * batches_per_slot_;
}

}  // namespace lockstep
