#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "lockstep/state.h"

namespace lockstep {

class Optimizer;

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // steps without an overflow until the scale grows
  /// False: every call passes its argument through.
  bool enabled = true;
};

/// Keeps float16 gradients out of underflow: the loss is multiplied by a scale before backward and
/// gradients are divided by it before the step; a step with an overflow is skipped and lowers the
/// scale. Equal to torch.amp.GradScaler, value for value, for one optimizer.
///
///     scaler.scale(loss).backward();
///     scaler.unscale(optimizer);             // optional: to clip, or to combine found_inf()
///     group.all_reduce(scaler.found_inf(), {.op = ReduceOp::max});
///     scaler.step(optimizer);                // skips without the host having to know
///     scaler.update();
///
/// Ranks must agree on a skipped step. After DistributedDataParallel they do, because an overflow
/// anywhere is in the reduced gradient; found_inf() is there for everything else.
class GradScaler {
 public:
  /// Throws InvalidArgument for factors on the wrong side of 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  bool enabled() const { return options_.enabled; }

  at::Tensor scale(const at::Tensor& loss);

  /// Divides the gradients and looks for overflow. Throws InvalidArgument when called twice before
  /// update(), and for float16 gradients: parameters are kept in float32 under autocast.
  void unscale(Optimizer& optimizer);

  /// Looks for overflow in gradients that stay scaled; step() divides them in the pass that uses
  /// them. For a caller that wants found_inf() and does not need the gradients.
  void check(Optimizer& optimizer);

  /// 1 after an overflow, else 0: a float32 tensor on the scale's device. A change in place counts.
  /// Only between unscale() or check() and update().
  const at::Tensor& found_inf() const;

  /// The optimizer's step, which does nothing after an overflow.
  void step(Optimizer& optimizer);

  /// Adapts the scale; ends the iteration.
  void update();

  /// The present scale. Waits for the device.
  double get_scale() const;

  /// Tensors "scale" and "growth_tracker" once there are any, values of the options.
  State state() const;
  void load_state(const State& state);

 private:
  enum class Stage { ready, checked, unscaled, stepped };

  void make_scale(const at::Device& device);
  void find_overflow(Optimizer& optimizer, const at::Tensor& inverse_scale, const char* caller);

  GradScalerOptions options_;
  std::int64_t initial_growth_tracker_ = 0;
  at::Tensor scale_;           // made on the device of the first loss
  at::Tensor growth_tracker_;  // steps since the last overflow or growth
  at::Tensor found_inf_;
  Stage stage_ = Stage::ready;
};

}  // namespace lockstep
