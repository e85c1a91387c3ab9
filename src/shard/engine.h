#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/sharded.h"
#include "shard/flat_unit.h"
#include "shard/part_copy.h"

namespace torch::nn {
class Module;
}
namespace lockstep {
class DeferredModule;
}

namespace lockstep {

/// What one ShardedDataParallel is made of.
///
/// Forward passes the units in some order, which the first one shows; every rank has the same.
/// Entering a unit waits for its parameters and sends for those of the next. Outputs of units pass
/// through identities, whose backward is the moment before the unit's own backward: it fetches the
/// parameters again. The last gradient of a unit ends its backward: gradients leave to be reduced,
/// in the opposite order of forward, and parameters are given up.
struct ShardedEngine::Impl : ForwardUnits, std::enable_shared_from_this<ShardedEngine::Impl> {
  /// `make_exchange` is given the device.
  using MakeExchange = std::function<std::unique_ptr<ShardExchange>(c10::Device device)>;
  Impl(const MakeExchange& make_exchange, std::shared_ptr<torch::nn::Module> module,
       const ShardedOptions& options);
  ~Impl() override;

  void make_parameters(const DeferredModule& source);
  void keep_copy(int distance);
  void watch_gradients();
  void begin_forward();
  void end_forward(const std::vector<at::Tensor*>& outputs);
  void leave_forward();
  void say_what_was_not_passed();

  at::Tensor enter(const torch::nn::Module& unit, const at::Tensor& x) override;
  at::Tensor leave(const torch::nn::Module& unit, const at::Tensor& x) override;
  bool gather_all() override;

  void begin_backward();
  void before_backward_of(std::size_t unit);
  void on_gradient(std::size_t unit, std::size_t parameter);
  void reduce_what_is_ready();
  void end_backward();
  void forget_backward();

  std::size_t root() const { return units.size() - 1; }
  std::size_t index_of(const torch::nn::Module& unit) const;
  void fetch_next(std::size_t unit, bool forward);
  void note_memory();
  ShardedMemory memory_now() const;

  std::shared_ptr<torch::nn::Module> module;
  ShardedOptions options;
  std::unique_ptr<ShardExchange> exchange;
  std::vector<std::unique_ptr<FlatUnit>> units;  // the root is the last, and may be empty
  std::map<const torch::nn::Module*, std::size_t> by_module;
  std::vector<NamedParameter> pieces;
  std::unique_ptr<PartCopy> copy;  // null without peer_copies, or before keep_copy()
  PartCopy& kept_copy() const;     // throws InvalidArgument there
  std::vector<std::function<void()>> unwatch;

  bool requires_sync = true;
  ForwardUnits* outer = nullptr;    // who listened before this forward
  std::vector<std::size_t> order;   // of the last forward
  bool has_passed = false;          // a forward has come to its end
  std::vector<std::size_t> passed;  // of the present one

  bool in_backward = false;
  std::vector<std::size_t> reduce_order;
  std::vector<bool> ready;
  std::size_t next_to_reduce = 0;
  std::deque<std::size_t> reducing;
  ShardedMemory most;
};

}  // namespace lockstep
