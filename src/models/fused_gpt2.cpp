#include "models/fused_gpt2.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/device_code.h"
#include "kernels/embedding.h"
#include "lockstep/error.h"
#include "models/fused_head.h"
#include "models/fused_ops.h"
#include "models/fused_weights.h"

namespace lockstep {

namespace {

// Where what was found by timing is kept between runs: with all else that can be made again.
std::string algorithm_file() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache != 0) {
    folder = cache;
  } else if (home != nullptr && *home != 0) {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return "";
  }
  folder /= "lockstep";
  std::error_code failed;  // then the file cannot be written either, and nothing is kept
  std::filesystem::create_directories(folder, failed);
  return folder / "matrix_products";
}

}  // namespace

struct FusedGpt2::State {
  FusedLibraries libraries{.gemm = kernels::Gemm({.cache_file = algorithm_file()}),
                           .attention = {}};
  FusedWeights weights;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// One forward, and what its backward needs of it.
struct Call : torch::CustomClassHolder {
  FusedLibraries* libraries = nullptr;
  const FusedWeights* weights = nullptr;
  std::shared_ptr<void> owner;  // of both
  kernels::EmbeddingShape shape;
  std::int64_t positions = 0;
  bool is_tied = false;
  std::int64_t version = 0;         // of the weights, when they were cast
  at::Tensor weights_for_versions;  // one that every optimizer changes
  at::Tensor head_gradient;         // float32 with padding, until the embedding's is added
  FusedUpstream upstream;           // what the node before gave back, for the next one
};

using CallPtr = c10::intrusive_ptr<Call>;

template <typename T>
void keep(AutogradContext* context, c10::intrusive_ptr<T> value) {
  context->saved_data["state"] = c10::IValue::make_capsule(std::move(value));
}

// What a node kept, which is given up with it: backward frees memory as it goes.
template <typename T>
c10::intrusive_ptr<T> take(AutogradContext* context) {
  const auto found = context->saved_data.find("state");
  if (found == context->saved_data.end()) {
    throw Error("the loss of a GPT-2 on a GPU has one backward; call forward again");
  }
  auto value = c10::static_intrusive_pointer_cast<T>(found->second.toCapsule());
  context->saved_data.erase(found);
  return value;
}

struct Embedding : Function<Embedding> {
  struct Kept : torch::CustomClassHolder {
    CallPtr call;
    at::Tensor ids;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor&, const at::Tensor&,
                            const at::Tensor& ids, const CallPtr& call) {
    const kernels::EmbeddingShape& shape = call->shape;
    const at::Tensor x = at::empty({ids.numel(), shape.columns}, call->weights->wte().options());
    kernels::embedding_forward(ids.const_data_ptr<std::int64_t>(),
                               fused::bits(call->weights->wte()), fused::bits(call->weights->wpe()),
                               fused::bits(x), shape, fused::stream());
    auto kept = c10::make_intrusive<Kept>();
    kept->call = call;
    kept->ids = ids;
    keep(context, std::move(kept));
    return x;
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    const at::NoGradGuard no_graph;
    const auto kept = take<Kept>(context);
    Call& call = *kept->call;
    call.upstream = {};
    const kernels::EmbeddingShape& shape = call.shape;
    const at::Tensor gradient = upstream[0].contiguous();
    // A tied head's gradient lies there already; this one is added in its place.
    at::Tensor tokens = std::move(call.head_gradient);
    const auto floats = gradient.options().dtype(at::kFloat);
    if (!tokens.defined()) tokens = at::zeros({shape.vocabulary, shape.columns}, floats);
    at::Tensor places = at::empty({call.positions, shape.columns}, floats);
    places.narrow(0, shape.length, call.positions - shape.length).zero_();
    const at::Tensor scratch =
        at::empty({static_cast<std::int64_t>(kernels::embedding_backward_scratch(shape))},
                  gradient.options().dtype(at::kByte));
    kernels::embedding_backward(kept->ids.const_data_ptr<std::int64_t>(), fused::bits(gradient),
                                fused::floats(tokens), fused::floats(places), scratch.data_ptr(),
                                shape, fused::stream());
    return {tokens.narrow(0, 0, shape.vocabulary), places, {}, {}};
  }
};

struct Block : Function<Block> {
  struct Kept : torch::CustomClassHolder {
    CallPtr call;
    std::size_t index = 0;
    FusedBlockOptions options;
    FusedBlockState state;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList,
                            const CallPtr& call, std::size_t index,
                            const FusedBlockOptions& options) {
    auto kept = c10::make_intrusive<Kept>();
    kept->call = call;
    kept->index = index;
    kept->options = options;
    const at::Tensor out =
        fused_block_forward(*call->libraries, x, call->weights->block(index), options, kept->state);
    keep(context, std::move(kept));
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    const at::NoGradGuard no_graph;
    const auto kept = take<Kept>(context);
    Call& call = *kept->call;
    // The sums are of this very gradient, unless someone's hook has put another in its place.
    FusedUpstream given = std::move(call.upstream);
    if (!given.gradient.is_same(upstream[0])) given = {upstream[0].contiguous(), {}};
    FusedBlockGradients gradients = fused_block_backward(
        *call.libraries, given, call.weights->block(kept->index), kept->options, kept->state);
    call.upstream = gradients.x;
    variable_list result = {std::move(gradients.x.gradient)};
    for (at::Tensor& each : gradients.of_weights) result.push_back(std::move(each));
    result.resize(result.size() + 3);
    return result;
  }
};

// The last norm, the head and the loss.
struct Head : Function<Head> {
  struct Kept : torch::CustomClassHolder {
    CallPtr call;
    at::Tensor x, mean, rstd;
    FusedHeadState head;
  };

  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor&,
                            const at::Tensor&, const at::Tensor&, const at::Tensor& labels,
                            const CallPtr& call, double epsilon) {
    const FusedWeights& weights = *call->weights;
    auto kept = c10::make_intrusive<Kept>();
    kept->call = call;
    kept->x = x;
    const at::Tensor normed =
        fused::norm(x, weights.ln_f(), weights.ln_f_bias(), epsilon, kept->mean, kept->rstd);
    const at::Tensor losses = fused_head_forward(call->libraries->gemm, normed, weights.head(),
                                                 labels, call->shape.vocabulary, kept->head);
    keep(context, std::move(kept));
    return losses.sum();
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    const at::NoGradGuard no_graph;
    const auto kept = take<Kept>(context);
    Call& call = *kept->call;
    if (call.weights_for_versions._version() != call.version) {
      throw Error("Gpt2: weights were changed between forward and backward");
    }
    const FusedHeadGradients gradients = fused_head_backward(
        call.libraries->gemm, upstream[0].contiguous(), call.weights->head(), kept->head);
    fused::NormGradients norm =
        fused::norm_gradients(gradients.rows, kept->x, call.weights->ln_f(), kept->mean, kept->rstd,
                              /*past=*/{}, kept->head.factors);
    norm.unfinished.finish();
    call.upstream = {norm.x, norm.bias};
    variable_list result = {norm.x, norm.gamma, norm.beta, {}, {}, {}, {}};
    if (call.is_tied) {
      call.head_gradient = gradients.head;  // returned with the embedding's
    } else {
      result[3] = gradients.head.narrow(0, 0, call.shape.vocabulary);
    }
    return result;
  }
};

bool is_recording() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

// How many labels count, known to the host when the device gets there, which is long before forward
// is through: nobody waits in between.
class Count {
 public:
  explicit Count(const at::Tensor& labels) : device_(labels.ne(kIgnoredLabel).sum()) {
    if (is_recording()) return;
    host_ = at::empty({}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
    host_.copy_(device_, /*non_blocking=*/true);
    copied_.record();
    device_ = at::Tensor();
  }

  /// Defined while a graph is recorded.
  const at::Tensor& on_device() const { return device_; }

  double value() {
    if (!host_.defined()) return std::numeric_limits<double>::quiet_NaN();
    copied_.synchronize();
    return static_cast<double>(host_.item<std::int64_t>());
  }

 private:
  at::Tensor device_, host_;
  at::cuda::CUDAEvent copied_;
};

std::string objection_to_device(c10::Device device) {
  const cudaDeviceProp& properties = *at::cuda::getDeviceProperties(device.index());
  if (properties.major < 8) return "the GPU is older than sm_80";
  const c10::cuda::CUDAGuard guard(device);
  if (kernels::has_device_code()) return "";
  const std::string architecture =
      properties.major == 9 ? "90a" : concat(10 * properties.major + properties.minor);
  return concat("this build has no kernels for the GPU; -DCMAKE_CUDA_ARCHITECTURES=", architecture,
                " makes one that has");
}

std::string objection_to_shape(const Gpt2Config& config, const at::Tensor& ids) {
  constexpr std::int64_t kMostLogitBytes = std::int64_t{16} << 30;
  const std::int64_t head_size = config.n_embd / config.n_head;
  const std::int64_t padded = (config.vocab_size + FusedWeights::kRowMultiple - 1) /
                              FusedWeights::kRowMultiple * FusedWeights::kRowMultiple;
  if (config.n_embd % 8 != 0 || config.n_embd > 2048) {
    return concat("n_embd is ", config.n_embd, ", not a multiple of 8 up to 2048");
  }
  if (config.inner() % 8 != 0)
    return concat("n_inner is ", config.inner(), ", not a multiple of 8");
  if (head_size % 8 != 0 || head_size > 128) {
    return concat("a head has ", head_size, " columns, not a multiple of 8 up to 128");
  }
  if (ids.numel() * padded * 2 > kMostLogitBytes) {
    return concat("the logits of ", ids.numel(), " tokens would take more than 16 GiB");
  }
  if (ids.numel() == 0) return "there are no tokens";
  return "";
}

std::string objection_to_weights(const Gpt2Weights& weights, c10::Device device) {
  if (weights.wte.scalar_type() == at::kBFloat16) {
    return "its weights are bfloat16; the precision bf16_autocast keeps them float32";
  }
  const auto fits = [&](const at::Tensor& weight) {
    return weight.scalar_type() == at::kFloat && weight.device() == device &&
           weight.is_contiguous() && weight.requires_grad() &&
           reinterpret_cast<std::uintptr_t>(weight.const_data_ptr()) % 16 == 0;
  };
  bool all = fits(weights.wte) && fits(weights.wpe) && fits(weights.ln_f.weight) &&
             fits(weights.ln_f.bias) && (weights.is_tied() || fits(weights.lm_head));
  for (const BlockWeights& block : weights.blocks) {
    for (const at::Tensor& weight : block.list()) all = all && fits(weight);
  }
  return all ? "" : "not all weights are float32, in the GPU's memory and trained";
}

}  // namespace

FusedGpt2::FusedGpt2() : state_(std::make_shared<State>()) {}
FusedGpt2::~FusedGpt2() = default;

std::string FusedGpt2::objection(const Gpt2Config& config, const Gpt2Weights& weights,
                                 const at::Tensor& ids, bool is_training) {
  if (config.activation != Gpt2Activation::gelu_tanh) return "the activation is not gelu_new";
  if (is_training && (config.embd_pdrop > 0 || config.attn_pdrop > 0 || config.resid_pdrop > 0)) {
    return "there is dropout";
  }
  for (std::string reason : {objection_to_device(ids.device()), objection_to_shape(config, ids)}) {
    if (!reason.empty()) return reason;
  }
  return objection_to_weights(weights, ids.device());
}

Gpt2Loss FusedGpt2::loss(const Gpt2Config& config, const Gpt2Options& options,
                         const Gpt2Weights& weights, const at::Tensor& ids,
                         const at::Tensor& labels) {
  const c10::cuda::CUDAGuard guard(ids.device());
  const at::Tensor flat_ids = ids.contiguous(), flat_labels = labels.contiguous();
  Count count(flat_labels);
  state_->weights.refresh(weights);
  if (KeptCopies* kept = KeptCopies::current(); kept != nullptr && is_recording()) {
    kept->rely_on([weak = std::weak_ptr(state_)] {
      if (const auto state = weak.lock()) state->weights.refresh_stale();
    });
  }
  auto call = c10::make_intrusive<Call>();
  call->libraries = &state_->libraries;
  call->weights = &state_->weights;
  call->owner = state_;
  call->shape = {.batch = static_cast<int>(ids.size(0)),
                 .length = static_cast<int>(ids.size(1)),
                 .columns = static_cast<int>(config.n_embd),
                 .vocabulary = static_cast<int>(config.vocab_size)};
  call->positions = config.n_positions;
  call->is_tied = weights.is_tied();
  call->weights_for_versions = weights.ln_f.weight.detach();
  call->version = call->weights_for_versions._version();

  at::Tensor x = Embedding::apply(weights.wte, weights.wpe, flat_ids, call);
  const auto head_size = static_cast<double>(config.n_embd / config.n_head);
  for (std::size_t i = 0; i < weights.blocks.size(); ++i) {
    FusedBlockOptions block{
        .batch = ids.size(0),
        .tokens = ids.size(1),
        .heads = config.n_head,
        .attention_scale = config.scale_attn_weights ? 1 / std::sqrt(head_size) : 1,
        .epsilon = config.layer_norm_epsilon,
        .recompute = options.activation_checkpointing};
    if (config.scale_attn_by_inverse_layer_idx) {
      block.attention_scale /= static_cast<double>(i + 1);
    }
    const auto list = weights.blocks[i].list();
    x = Block::apply(x, at::TensorList(list), call, i, block);
  }
  const at::Tensor sum = Head::apply(x, weights.ln_f.weight, weights.ln_f.bias, weights.head(),
                                     flat_labels, call, config.layer_norm_epsilon);
  return {.sum = sum, .count = count.value(), .counted = count.on_device()};
}

}  // namespace lockstep
