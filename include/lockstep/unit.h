#pragma once

#include <utility>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Who wants to know where the parts of a model begin and end while a forward runs on this thread:
/// ShardedDataParallel, whose parameters are there only while they are used.
class ForwardUnits {
 public:
  virtual ~ForwardUnits() = default;

  /// Before and after a unit's forward. What they return takes the place of `x`, so that backward
  /// passes the same points in the opposite direction.
  virtual at::Tensor enter(const torch::nn::Module& unit, const at::Tensor& x) = 0;
  virtual at::Tensor leave(const torch::nn::Module& unit, const at::Tensor& x) = 0;

  /// For a forward that uses all parameters without marks: makes them whole, or says false where
  /// they are there only between marks.
  virtual bool gather_all() { return false; }

  /// Null while nobody wants to know.
  static ForwardUnits* current();

 protected:
  /// For as long as a forward runs; returns who it was before.
  static ForwardUnits* set_current(ForwardUnits* units);
};

/// Marks a part of a model that can be kept in pieces: inside the forward of the whole,
///
///     for (auto& block : blocks) {
///       x = lockstep::unit(*block, x, [&](const at::Tensor& x) { return block->forward(x); });
///     }
///
/// Without ShardedDataParallel it calls `forward` and does nothing else.
template <typename Forward>
at::Tensor unit(const torch::nn::Module& module, const at::Tensor& x, Forward&& forward) {
  ForwardUnits* units = ForwardUnits::current();
  if (units == nullptr) return std::forward<Forward>(forward)(x);
  return units->leave(module, std::forward<Forward>(forward)(units->enter(module, x)));
}

}  // namespace lockstep
