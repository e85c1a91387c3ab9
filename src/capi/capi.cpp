#include <algorithm>
#include <cstring>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/api/include/torch/version.h>

#include "lockstep/ddp.h"
#include "lockstep/distributed_sampler.h"
#include "lockstep/lockstep.h"
#include "lockstep/world.h"

struct lockstep_world {
  lockstep::World world;
};

struct lockstep_ddp {
  lockstep::DataParallelEngine engine;
};

struct lockstep_sampler {
  lockstep::DistributedSampler sampler;
};

namespace {

using namespace lockstep;

thread_local std::string last_error;

lockstep_status failed(lockstep_status status, const std::exception& error) {
  const std::string text = error.what();
  last_error = first_line(text);
  return status;
}

// Runs a call and turns what it throws into a status.
template <typename Call>
lockstep_status guarded(Call call) noexcept {
  try {
    call();
    return LOCKSTEP_OK;
  } catch (const InvalidArgument& error) {
    return failed(LOCKSTEP_INVALID_ARGUMENT, error);
  } catch (const Timeout& error) {
    return failed(LOCKSTEP_TIMEOUT, error);
  } catch (const PeerLost& error) {
    return failed(LOCKSTEP_PEER_LOST, error);
  } catch (const Aborted& error) {
    return failed(LOCKSTEP_ABORTED, error);
  } catch (const UnusedParameters& error) {
    return failed(LOCKSTEP_UNUSED_PARAMETERS, error);
  } catch (const std::exception& error) {
    return failed(LOCKSTEP_ERROR, error);
  } catch (...) {
    return failed(LOCKSTEP_ERROR, Error("an exception of an unknown type"));
  }
}

void require(bool condition, const char* what) {
  if (!condition) throw InvalidArgument(what);
}

// Copies what the caller's version of the struct holds over the defaults.
template <typename Options>
Options read(const Options* given, void (*fill_defaults)(Options*)) {
  Options options;
  fill_defaults(&options);
  if (!given) return options;
  require(given->size_of_struct >= sizeof(std::size_t) && given->size_of_struct <= 1 << 16,
          "an options struct has no size; fill it with its _default function first");
  std::memcpy(&options, given, std::min(sizeof(Options), given->size_of_struct));
  return options;
}

at::Tensor& tensor_of(lockstep_tensor* tensor) {
  require(tensor != nullptr, "a tensor is NULL");
  return *reinterpret_cast<at::Tensor*>(tensor);
}

ProcessGroup& group_of(lockstep_world* world) {
  require(world != nullptr, "the world is NULL");
  return world->world.group();
}

DataParallelEngine& engine_of(lockstep_ddp* ddp) {
  require(ddp != nullptr, "the ddp is NULL");
  return ddp->engine;
}

ReduceOp reduce_op(lockstep_reduce_op op) {
  switch (op) {
    case LOCKSTEP_SUM:
      return ReduceOp::sum;
    case LOCKSTEP_AVG:
      return ReduceOp::avg;
    case LOCKSTEP_PRODUCT:
      return ReduceOp::product;
    case LOCKSTEP_MIN:
      return ReduceOp::min;
    case LOCKSTEP_MAX:
      return ReduceOp::max;
  }
  throw InvalidArgument(concat("reduce op ", static_cast<int>(op), " does not exist"));
}

at::ScalarType scalar_type(lockstep_dtype dtype) {
  switch (dtype) {
    case LOCKSTEP_FLOAT32:
      return at::kFloat;
    case LOCKSTEP_FLOAT64:
      return at::kDouble;
    case LOCKSTEP_INT32:
      return at::kInt;
    case LOCKSTEP_INT64:
      return at::kLong;
  }
  throw InvalidArgument(concat("dtype ", static_cast<int>(dtype), " does not exist"));
}

std::string text_or_empty(const char* text) {
  return text ? text : "";
}

}  // namespace

extern "C" {

const char* lockstep_last_error(void) {
  return last_error.c_str();
}
const char* lockstep_version(void) {
  return LOCKSTEP_VERSION;
}
const char* lockstep_torch_version(void) {
  return TORCH_VERSION;
}

lockstep_status lockstep_tensor_from_blob(void* data, const int64_t* sizes, size_t dimensions,
                                          lockstep_dtype dtype, lockstep_tensor** tensor) {
  return guarded([&] {
    require(data && tensor && (sizes || dimensions == 0), "tensor_from_blob: an argument is NULL");
    auto* made =
        new at::Tensor(at::from_blob(data, at::IntArrayRef(sizes, dimensions), scalar_type(dtype)));
    *tensor = reinterpret_cast<lockstep_tensor*>(made);
  });
}

void lockstep_tensor_free(lockstep_tensor* tensor) {
  delete reinterpret_cast<at::Tensor*>(tensor);
}

void lockstep_init_options_default(lockstep_init_options* options) {
  *options = {.size_of_struct = sizeof(*options),
              .init_method = "env://",
              .backend = "",
              .device = "",
              .rank = -1,
              .world_size = -1,
              .timeout_ms = InitOptions{}.timeout.count(),
              .rendezvous_timeout_ms = InitOptions{}.rendezvous_timeout.count(),
              .epoch = -1};
}

lockstep_status lockstep_init(const lockstep_init_options* given, lockstep_world** world) {
  return guarded([&] {
    require(world != nullptr, "init: world is NULL");
    const auto options = read(given, lockstep_init_options_default);
    InitOptions init_options{
        .init_method = text_or_empty(options.init_method),
        .backend = text_or_empty(options.backend),
        .device = text_or_empty(options.device),
        .timeout = std::chrono::milliseconds(options.timeout_ms),
        .rendezvous_timeout = std::chrono::milliseconds(options.rendezvous_timeout_ms)};
    if (options.rank >= 0) init_options.rank = options.rank;
    if (options.world_size >= 0) init_options.world_size = options.world_size;
    if (options.epoch >= 0) init_options.epoch = options.epoch;
    *world = new lockstep_world{init(init_options)};
  });
}

void lockstep_destroy(lockstep_world* world) {
  delete world;
}

lockstep_status lockstep_abort(lockstep_world* world) {
  return guarded([&] {
    require(world != nullptr, "abort: world is NULL");
    world->world.abort();
  });
}

int lockstep_rank(const lockstep_world* world) {
  return world->world.rank();
}
int lockstep_world_size(const lockstep_world* world) {
  return world->world.world_size();
}
int lockstep_local_rank(const lockstep_world* world) {
  return world->world.local_rank();
}

lockstep_status lockstep_barrier(lockstep_world* world) {
  return guarded([&] {
    require(world != nullptr, "barrier: world is NULL");
    world->world.barrier();
  });
}

lockstep_status lockstep_all_reduce(lockstep_world* world, lockstep_tensor* tensor,
                                    lockstep_reduce_op op) {
  return guarded([&] { group_of(world).all_reduce(tensor_of(tensor), {.op = reduce_op(op)}); });
}

lockstep_status lockstep_broadcast(lockstep_world* world, lockstep_tensor* tensor, int root) {
  return guarded([&] { group_of(world).broadcast(tensor_of(tensor), {.root = root}); });
}

void lockstep_ddp_options_default(lockstep_ddp_options* options) {
  *options = {.size_of_struct = sizeof(*options),
              .bucket_cap_mb = 0,
              .find_unused_parameters = 0,
              .static_graph = 0,
              .gradient_as_bucket_view = 1,
              .native_reduction = 0};
}

lockstep_status lockstep_ddp_create(lockstep_world* world, lockstep_tensor* const* parameters,
                                    const char* const* names, size_t count,
                                    const lockstep_ddp_options* given, lockstep_ddp** ddp) {
  return guarded([&] {
    require(ddp && (count == 0 || (parameters && names)), "ddp_create: an argument is NULL");
    const auto options = read(given, lockstep_ddp_options_default);
    std::vector<NamedTensor> named;
    for (std::size_t i = 0; i < count; ++i) {
      named.push_back({.name = text_or_empty(names[i]),
                       .tensor = std::make_shared<at::Tensor>(tensor_of(parameters[i]))});
    }
    DistributedDataParallelOptions engine_options{
        .find_unused_parameters = options.find_unused_parameters != 0,
        .static_graph = options.static_graph != 0,
        .gradient_as_bucket_view = options.gradient_as_bucket_view != 0,
        .reduction = options.native_reduction ? Reduction::native : Reduction::automatic};
    if (options.bucket_cap_mb != 0) engine_options.bucket_cap_mb = options.bucket_cap_mb;
    *ddp = new lockstep_ddp{DataParallelEngine(group_of(world), std::move(named), engine_options)};
  });
}

void lockstep_ddp_destroy(lockstep_ddp* ddp) {
  delete ddp;
}

lockstep_status lockstep_ddp_before_forward(lockstep_ddp* ddp) {
  return guarded([&] { engine_of(ddp).before_forward({}); });
}

lockstep_status lockstep_ddp_after_forward(lockstep_ddp* ddp, lockstep_tensor* const* outputs,
                                           size_t count) {
  return guarded([&] {
    std::vector<at::Tensor*> tensors;
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(&tensor_of(outputs[i]));
    engine_of(ddp).after_forward(tensors);
  });
}

lockstep_status lockstep_ddp_set_sync(lockstep_ddp* ddp, int sync) {
  return guarded([&] { engine_of(ddp).set_require_backward_grad_sync(sync != 0); });
}

lockstep_status lockstep_ddp_zero_grad(lockstep_ddp* ddp) {
  return guarded([&] { engine_of(ddp).zero_grad(); });
}

void lockstep_sampler_options_default(lockstep_sampler_options* options) {
  *options = {.size_of_struct = sizeof(*options),
              .dataset_size = 0,
              .world_size = 1,
              .rank = 0,
              .shuffle = 1,
              .seed = 0,
              .drop_last = 0};
}

lockstep_status lockstep_sampler_create(const lockstep_sampler_options* given,
                                        lockstep_sampler** sampler) {
  return guarded([&] {
    require(sampler != nullptr, "sampler_create: sampler is NULL");
    const auto options = read(given, lockstep_sampler_options_default);
    *sampler = new lockstep_sampler{DistributedSampler({.dataset_size = options.dataset_size,
                                                        .world_size = options.world_size,
                                                        .rank = options.rank,
                                                        .shuffle = options.shuffle != 0,
                                                        .seed = options.seed,
                                                        .drop_last = options.drop_last != 0})};
  });
}

void lockstep_sampler_destroy(lockstep_sampler* sampler) {
  delete sampler;
}

void lockstep_sampler_set_epoch(lockstep_sampler* sampler, int64_t epoch) {
  sampler->sampler.set_epoch(epoch);
}

int64_t lockstep_sampler_size(const lockstep_sampler* sampler) {
  return sampler->sampler.size();
}

lockstep_status lockstep_sampler_indices(const lockstep_sampler* sampler, int64_t* indices,
                                         size_t capacity) {
  return guarded([&] {
    const auto share = sampler->sampler.indices();
    if (capacity < share.size()) {
      throw InvalidArgument(concat("sampler_indices: capacity is ", capacity,
                                   "; it must be at least ", share.size()));
    }
    std::ranges::copy(share, indices);
  });
}

}  // extern "C"
