#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optimizer.h"
#include "lockstep/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct EmaOptions {
  double decay = 0.999;
  /// Begin with a short memory: the decay of update t is min(decay, (1 + t) / (10 + t)).
  bool warmup = false;
};

/// An exponential moving average of a model's weights, which often evaluates better than the
/// weights.
///
/// Each update() makes every averaged weight decay x average + (1 - decay) x weight; the first one
/// copies. Buffers (BatchNorm's statistics) are copied as they are. Equal to Python's AveragedModel
/// with get_ema_multi_avg_fn, bit for bit.
///
/// Thread rule: one thread, the one that trains.
class Ema {
 public:
  explicit Ema(const torch::nn::Module& module, const EmaOptions& options = {});
  /// Throws InvalidArgument for a decay outside [0, 1].
  Ema(std::vector<NamedParameter> parameters, std::vector<NamedParameter> buffers,
      const EmaOptions& options = {});
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  /// After a step of the optimizer.
  void update();

  std::int64_t updates() const { return updates_; }

  /// While it lives, the model holds the average; then its own weights again, also when an
  /// exception passes. No update() meanwhile.
  class [[nodiscard]] Swapped {
   public:
    explicit Swapped(Ema& ema);
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;
    ~Swapped();

   private:
    Ema& ema_;
    std::vector<at::Tensor> own_;  // the model's weights meanwhile
  };

  /// Makes the average the model's weights, for good. Not inside Swapped.
  void copy_to_model();

  /// Averages by the names of parameters and buffers, shared with this object; value "updates".
  State state() const;
  /// Copies. Throws InvalidArgument, and changes nothing, for other names or shapes.
  void load_state(const State& state);

 private:
  EmaOptions options_;
  std::vector<NamedParameter> live_;  // parameters, then buffers
  std::size_t parameter_count_ = 0;
  std::vector<at::Tensor> average_;  // of live_, one for one
  std::int64_t updates_ = 0;
  bool swapped_ = false;
};

}  // namespace lockstep
