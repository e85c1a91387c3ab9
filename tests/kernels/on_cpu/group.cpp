#include "tests/kernels/on_cpu/group.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {

bool Product::is_like(const Product& other) const {
  return columns == other.columns && a == other.a && b == other.b && adds == other.adds &&
         transposed_a == other.transposed_a && transposed_b == other.transposed_b &&
         (pairs == nullptr) == (other.pairs == nullptr);
}

// Returns how many calls came before it.
unsigned Group::say(std::size_t warp, const char* call, const Product& product) {
  const unsigned before = warps_[warp].calls++;
  if (before - first_of_log_ == log_.size()) log_.push_back({.name = call, .product = product});
  Call& said = log_[before - first_of_log_];
  if (std::string_view(said.name) != call) {
    fail(words(call, " where another warp of its group has said ", said.name));
  }
  if (!said.product.is_like(product)) fail("warps of a group ask for different products");
  for (const Warp& other : warps_) {
    if (other.has_ended && other.calls <= before) {
      fail(words(call, " after a warp of its group has ended"));
    }
  }
  if (++said.warps == kWarps) log_.pop_front(), ++first_of_log_;
  for (Fiber* fiber : std::exchange(waiting_, {})) machine().wake(*fiber);
  return before;
}

void Group::wait_for_others(unsigned calls) {
  const auto is_behind = [&](const Warp& warp) { return warp.calls < calls; };
  while (std::ranges::any_of(warps_, is_behind)) {
    waiting_.push_back(&machine().thread());
    machine().wait({.kind = Wait::Kind::collective,
                    .call = "wait_for_products(), for warps that have not asked for theirs"});
  }
}

void Group::begin_products(std::size_t warp) {
  say(warp, "begin_products()");
  warps_[warp].is_fenced = true;
}

void Group::multiply(std::size_t warp, const Product& product, std::function<void()> compute) {
  say(warp, "multiply()", product);
  Warp& self = warps_[warp];
  if (!self.is_fenced) fail("multiply() without begin_products()");
  self.open.push_back(std::make_shared<Work>(Work{.does = std::move(compute)}));
  machine().start([&self] { compute_next(self); });
}

// A warp's are computed in their order.
void Group::compute_next(Warp& warp) {
  const auto compute_first = [](const Works& works) {
    const auto first = std::ranges::find_if(works, [](const auto& work) { return !work->done; });
    if (first == works.end()) return false;
    (*first)->happen();
    return true;
  };
  if (!std::ranges::any_of(warp.ended, compute_first)) compute_first(warp.open);
}

void Group::end_products(std::size_t warp) {
  say(warp, "end_product_group()");
  warps_[warp].ended.push_back(std::exchange(warps_[warp].open, {}));
}

void Group::wait(std::size_t warp, unsigned groups) {
  wait_for_others(say(warp, "wait_for_products()"));
  Warp& self = warps_[warp];
  // What follows will look at the sums, and products after that need another fence.
  if (groups == 0) self.is_fenced = false;
  if (self.ended.size() > groups) machine().linger();
  while (self.ended.size() > groups) {
    for (Warp& other : warps_) {
      if (other.waited > self.waited) continue;
      for (const auto& work : other.ended[self.waited - other.waited]) work->happen();
    }
    self.ended.pop_front();
    ++self.waited;
  }
}

void Group::leave(std::size_t warp) {
  Warp& self = warps_[warp];
  self.has_ended = true;
  if (!self.ended.empty() || !self.open.empty()) fail("ended without a wait for its products");
  for (const Warp& other : warps_) {
    if (other.calls > self.calls) {
      fail(words("ended while another warp of its group said ",
                 log_[self.calls - first_of_log_].name));
    }
  }
}

}  // namespace lockstep::kernels::on_cpu
