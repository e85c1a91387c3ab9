#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/comm_hook.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class ProcessGroup;
struct State;

/// Gradients travel as int8, with a scale for every 512 of them: a quarter of the bytes, in both
/// directions and for any number of ranks.
struct Int8Options {
  /// What rounding has taken away is added to the next step's gradient.
  bool error_feedback = true;
};

/// Gradients of matrices travel as two thin factors (Vogels et al., 2019). Names, defaults and
/// bits are those of Python's powerSGD_hook, given the same first Q.
struct PowerSGDOptions {
  std::int64_t matrix_approximation_rank = 1;
  std::int64_t start_powerSGD_iter = 1000;  // steps that are reduced without compression before
  double min_compression_rate = 2;          // what saves less travels whole, as vectors do
  bool use_error_feedback = true;
  bool warm_start = true;  // begin with the last step's Q
  double orthogonalization_epsilon = 0;
  std::uint64_t random_seed = 0;  // of the first Q; the same on every rank
};

/// How gradients are made smaller before they travel; the first: not at all.
using CompressionOptions = std::variant<std::monostate, CommHook, Int8Options, PowerSGDOptions>;

/// "none", "bf16", "fp16", "int8", "powersgd", "powersgd:RANK", "powersgd:RANK:START". Throws
/// InvalidArgument.
CompressionOptions parse_compression(const std::string& text);

/// Whether an error memory is kept from step to step.
bool keeps_error(const CompressionOptions& options);

/// A hook that remembers: the error memory of this rank (what it has not sent yet), the last Q of
/// each matrix, how many steps there were.
///
///     auto compression = std::make_shared<GradientCompression>(*model, Int8Options{});
///     ddp.register_comm_hook(compression);
///
/// It outlives the DistributedDataParallel that it is registered with, so that a step loop can keep
/// it when ranks are replaced. What it remembers goes by parameters, not by buckets: the bits of a
/// run do not depend on how gradients are bucketed.
///
/// Thread rule: that of the DistributedDataParallel; between backwards.
class GradientCompression {
 public:
  /// For Int8Options and PowerSGDOptions; throws InvalidArgument for others, and for values that
  /// make no sense. The parameters of `module` that require gradients, on their device.
  GradientCompression(const torch::nn::Module& module, const CompressionOptions& options);
  ~GradientCompression();
  GradientCompression(const GradientCompression&) = delete;
  GradientCompression& operator=(const GradientCompression&) = delete;

  const CompressionOptions& options() const;

  /// The logical rank whose error memory this process has. `mirrored`: every rank holds those of
  /// all slots, so that none is lost with a process; it costs memory, and an all-gather of what
  /// compression saves in each step.
  struct Place {
    int slot = 0;
    int slots = 1;
    bool mirrored = false;
  };
  void set_place(const Place& place);
  const Place& place() const;

  /// Until this is called, each backward changes what is remembered. Afterwards it only prepares
  /// the change, commit() makes it, and abort() forgets it; so does the next backward.
  void use_transactions();
  void commit();
  void abort();

  /// Collective, before commit(): hands round what is to be remembered, if it is mirrored.
  void mirror(ProcessGroup& group);

  /// What is the same on every rank: all but the error memory, unless that is mirrored.
  State state() const;

  /// Collective: with the error memory of every slot.
  State gather(ProcessGroup& group) const;

  /// Takes this slot's error memory from the state if it is there, and otherwise leaves it alone.
  /// Throws InvalidArgument for the state of other options or of another model.
  void load_state(const State& state);

  /// Elements of gradients so far, and elements (bytes of int8, numbers of factors) sent for them.
  struct Statistics {
    double before = 0;
    double after = 0;
  };
  Statistics statistics() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
