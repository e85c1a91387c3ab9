#include "kernels/attention.h"

#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

// What cuDNN is, libtorch decides: its copy is in the process already. Found by name at run time it
// is that one, and no second one is linked.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace lockstep::kernels {
namespace {

namespace cudnn = cudnn_frontend;
using cudnn::graph::Graph;
using cudnn::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

enum Name : std::int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStats,
  kGradient,
  kDQuery,
  kDKey,
  kDValue
};

void check(cudnn::error_t error) {
  if (error.is_bad()) throw std::runtime_error("cuDNN's attention: " + error.get_message());
}

// A graph of one operation, and the memory that it needs beside its tensors.
struct Plan {
  Graph graph;
  std::int64_t scratch = 0;

  Plan() {
    graph.set_io_data_type(cudnn::DataType_t::BFLOAT16)
        .set_intermediate_data_type(cudnn::DataType_t::FLOAT)
        .set_compute_data_type(cudnn::DataType_t::FLOAT);
  }

  void build(cudnnHandle_t handle) {
    check(graph.validate());
    check(graph.build_operation_graph(handle));
    check(graph.create_execution_plans({cudnn::HeurMode_t::A}));
    check(graph.check_support(handle));
    check(graph.build_plans(handle));
    check(graph.get_workspace_size(scratch));
  }
};

// cuDNN's view of our matrices: [batch, heads, tokens, head size], wherever these lie.
class Tensors {
 public:
  explicit Tensors(const AttentionShape& shape)
      : dims_{shape.batch, shape.heads, shape.tokens, shape.head_size},
        width_(shape.heads * shape.head_size),
        shape_(shape) {}

  TensorPtr packed(Graph& graph, Name name) const {
    return graph.tensor(
        Tensor_attributes().set_uid(name).set_dim(dims_).set_stride(packed_strides()));
  }
  TensorPtr plain(Graph& graph, Name name) const {
    return graph.tensor(
        Tensor_attributes().set_uid(name).set_dim(dims_).set_stride(plain_strides()));
  }
  TensorPtr stats(Graph& graph) const { return with_stats(graph.tensor(Tensor_attributes())); }

  void as_packed(const TensorPtr& out, Name name) const {
    out->set_output(true).set_uid(name).set_dim(dims_).set_stride(packed_strides());
  }
  void as_plain(const TensorPtr& out, Name name) const {
    out->set_output(true).set_uid(name).set_dim(dims_).set_stride(plain_strides());
  }
  void as_stats(const TensorPtr& out) const { with_stats(out)->set_output(true); }

 private:
  std::vector<std::int64_t> packed_strides() const {
    return {shape_.tokens * 3 * width_, shape_.head_size, 3 * width_, 1};
  }
  std::vector<std::int64_t> plain_strides() const {
    return {shape_.tokens * width_, shape_.head_size, width_, 1};
  }
  TensorPtr with_stats(const TensorPtr& tensor) const {
    tensor->set_uid(kStats)
        .set_dim({shape_.batch, shape_.heads, shape_.tokens, 1})
        .set_stride({shape_.heads * shape_.tokens, shape_.tokens, 1, 1})
        .set_data_type(cudnn::DataType_t::FLOAT);
    return tensor;
  }

  std::vector<std::int64_t> dims_;
  std::int64_t width_;
  AttentionShape shape_;
};

std::unique_ptr<Plan> forward_plan(cudnnHandle_t handle, const AttentionShape& shape) {
  auto plan = std::make_unique<Plan>();
  Graph& graph = plan->graph;
  const Tensors tensors(shape);
  const TensorPtr query = tensors.packed(graph, kQuery);
  const TensorPtr key = tensors.packed(graph, kKey);
  const TensorPtr value = tensors.packed(graph, kValue);
  auto options = cudnn::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_causal_mask(true)
                     .set_attn_scale(shape.scale);
  const auto [out, stats] = graph.sdpa(query, key, value, options);
  tensors.as_plain(out, kOut);
  tensors.as_stats(stats);
  plan->build(handle);
  return plan;
}

std::unique_ptr<Plan> backward_plan(cudnnHandle_t handle, const AttentionShape& shape) {
  auto plan = std::make_unique<Plan>();
  Graph& graph = plan->graph;
  const Tensors tensors(shape);
  const TensorPtr query = tensors.packed(graph, kQuery);
  const TensorPtr key = tensors.packed(graph, kKey);
  const TensorPtr value = tensors.packed(graph, kValue);
  const TensorPtr out = tensors.plain(graph, kOut);
  const TensorPtr gradient = tensors.plain(graph, kGradient);
  const TensorPtr stats = tensors.stats(graph);
  auto options = cudnn::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_causal_mask(true)
                     .set_attn_scale(shape.scale);
  const auto [query_gradient, key_gradient, value_gradient] =
      graph.sdpa_backward(query, key, value, out, gradient, stats, options);
  tensors.as_packed(query_gradient, kDQuery);
  tensors.as_packed(key_gradient, kDKey);
  tensors.as_packed(value_gradient, kDValue);
  plan->build(handle);
  return plan;
}

struct Plans {
  std::unique_ptr<Plan> forward, backward;  // null: cuDNN has no way
};

// cuDNN takes addresses that it only reads as it takes those it writes.
void* address(const void* data) {
  return const_cast<void*>(data);
}

}  // namespace

bool AttentionShape::operator<(const AttentionShape& other) const {
  const auto all = [](const AttentionShape& shape) {
    return std::tie(shape.batch, shape.tokens, shape.heads, shape.head_size, shape.scale);
  };
  return all(*this) < all(other);
}

struct Attention::State {
  State() {
    cudnn::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_GLOBAL);
    if (cudnn::cudnn_dlhandle == nullptr) return;
    if (cudnn::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
  }
  ~State() {
    plans.clear();
    if (handle != nullptr) cudnn::detail::destroy_handle(handle);
  }

  Plans& of(const AttentionShape& shape) {
    const auto found = plans.find(shape);
    if (found != plans.end()) return found->second;
    Plans& made = plans[shape];
    if (handle == nullptr) return made;
    try {
      made = {.forward = forward_plan(handle, shape), .backward = backward_plan(handle, shape)};
    } catch (const std::runtime_error& error) {  // takes() says no
      if (!std::exchange(said_why_not, true)) {
        std::fprintf(stderr, "lockstep: ATen calls cuDNN's attention: %s\n", error.what());
      }
    }
    return made;
  }

  void run(Plan& plan, std::unordered_map<std::int64_t, void*>& tensors, void* scratch,
           Stream stream) {
    if (cudnn::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS) {
      throw std::runtime_error("cuDNN's attention: the stream is refused");
    }
    check(plan.graph.execute(handle, tensors, scratch));
  }

  cudnnHandle_t handle = nullptr;
  bool said_why_not = false;
  std::map<AttentionShape, Plans> plans;
};

Attention::Attention() : state_(std::make_unique<State>()) {}
Attention::~Attention() = default;

bool Attention::takes(const AttentionShape& shape) {
  const Plans& plans = state_->of(shape);
  return plans.forward != nullptr && plans.backward != nullptr;
}

std::int64_t Attention::forward_scratch(const AttentionShape& shape) {
  return state_->of(shape).forward->scratch;
}
std::int64_t Attention::backward_scratch(const AttentionShape& shape) {
  return state_->of(shape).backward->scratch;
}

void Attention::forward(const AttentionShape& shape, const AttentionForward& call, void* scratch,
                        Stream stream) {
  const std::int64_t width = shape.heads * shape.head_size;
  std::unordered_map<std::int64_t, void*> tensors = {{kQuery, address(call.qkv)},
                                                     {kKey, address(call.qkv + width)},
                                                     {kValue, address(call.qkv + 2 * width)},
                                                     {kOut, call.out},
                                                     {kStats, call.log_sum_exp}};
  state_->run(*state_->of(shape).forward, tensors, scratch, stream);
}

void Attention::backward(const AttentionShape& shape, const AttentionBackward& call, void* scratch,
                         Stream stream) {
  const std::int64_t width = shape.heads * shape.head_size;
  std::unordered_map<std::int64_t, void*> tensors = {{kQuery, address(call.qkv)},
                                                     {kKey, address(call.qkv + width)},
                                                     {kValue, address(call.qkv + 2 * width)},
                                                     {kOut, address(call.out)},
                                                     {kGradient, address(call.gradient)},
                                                     {kStats, address(call.log_sum_exp)},
                                                     {kDQuery, call.qkv_gradient},
                                                     {kDKey, call.qkv_gradient + width},
                                                     {kDValue, call.qkv_gradient + 2 * width}};
  state_->run(*state_->of(shape).backward, tensors, scratch, stream);
}

}  // namespace lockstep::kernels
