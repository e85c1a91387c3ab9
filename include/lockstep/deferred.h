#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// A module that can be made without memory for its parameters, because the whole of them fits
/// nowhere: they are on the meta device, and their values come one after the other when
/// ShardedDataParallel asks, which keeps this rank's part of each. Gpt2 is one
/// (Gpt2Options::deferred).
class DeferredModule {
 public:
  using Take = std::function<void(const std::string& name, const at::Tensor& value)>;

  virtual ~DeferredModule() = default;

  /// Makes the value of each parameter, one at a time, and hands it over with the parameter's name;
  /// `take` keeps no reference to it. Values are those that a module with memory would have been
  /// made with, bit for bit, on the CPU and in row-major order. Throws what reading files throws.
  virtual void make_parameters(const Take& take) const = 0;
};

}  // namespace lockstep
