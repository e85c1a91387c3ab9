#include "models/linear_cross_entropy.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lockstep/error.h"
#include "models/softmax_gradient.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Gradients : torch::CustomClassHolder {
  at::Tensor hidden;  // undefined where not wanted
  at::Tensor weight;
  bool taken = false;
};

// The rows that count, of their own labels.
struct Rows {
  at::Tensor hidden;  // [M, E] in the type that products are computed in
  at::Tensor labels;  // [M]
};

// One pass over the rows of a batch.
class Pass {
 public:
  struct Wanted {
    bool hidden = false;
    bool weight = false;
  };

  Pass(const Rows& rows, const at::Tensor& weight, std::int64_t vocabulary, Wanted wanted)
      : rows_(rows), weight_(weight), vocabulary_(vocabulary), wanted_(wanted) {
    losses_ = at::empty({rows.hidden.size(0)}, rows.hidden.options().dtype(at::kFloat));
    if (wanted.hidden) hidden_gradient_ = at::empty_like(rows.hidden);
  }

  void run(std::int64_t chunk) {
    const std::int64_t count = rows_.hidden.size(0);
    if (count == 0 && wanted_.weight) weight_gradient_ = at::zeros_like(weight_);
    const auto columns = weight_.size(0);
    at::Tensor logits = at::empty({std::min(chunk, count), columns}, rows_.hidden.options());
    // Gradients of several chunks are added in float32.
    const bool several = count > chunk;
    for (std::int64_t first = 0; first < count; first += chunk) {
      const std::int64_t size = std::min(chunk, count - first);
      const at::Tensor hidden = rows_.hidden.narrow(0, first, size);
      at::Tensor product = logits.narrow(0, 0, size);
      at::mm_out(product, hidden, weight_.t());
      const at::Tensor gradient = softmax_gradient(
          product, rows_.labels.narrow(0, first, size), losses_.narrow(0, first, size),
          {.vocabulary = vocabulary_, .wanted = wanted_.hidden || wanted_.weight});
      if (wanted_.hidden) {
        at::Tensor into = hidden_gradient_.narrow(0, first, size);
        at::mm_out(into, gradient, weight_);
      }
      if (wanted_.weight) add_weight_gradient(gradient, hidden, several);
    }
  }

  at::Tensor sum() const { return losses_.sum(); }
  at::Tensor hidden_gradient() const { return hidden_gradient_; }
  at::Tensor weight_gradient() const { return weight_gradient_; }

 private:
  void add_weight_gradient(const at::Tensor& gradient, const at::Tensor& hidden, bool several) {
    if (!weight_gradient_.defined()) {
      weight_gradient_ = at::mm(gradient.t(), hidden);
      if (several && weight_gradient_.scalar_type() != at::kDouble) {
        weight_gradient_ = weight_gradient_.to(at::kFloat);
      }
    } else if (weight_gradient_.scalar_type() == hidden.scalar_type()) {
      weight_gradient_.addmm_(gradient.t(), hidden);
    } else {
      weight_gradient_.add_(at::mm(gradient.t(), hidden));
    }
  }

  const Rows& rows_;
  at::Tensor weight_;  // [columns, E]
  std::int64_t vocabulary_;
  Wanted wanted_;
  at::Tensor losses_;
  at::Tensor hidden_gradient_;
  at::Tensor weight_gradient_;
};

// The loops on the CPU read and write where a label points. A device checks by itself.
void check_labels(const at::Tensor& labels, std::int64_t vocabulary) {
  if (!labels.is_cpu() || labels.numel() == 0) return;
  const std::int64_t low = labels.min().item<std::int64_t>();
  const std::int64_t high = labels.max().item<std::int64_t>();
  if (low < 0 || high >= vocabulary) {
    throw InvalidArgument(concat("label ", low < 0 ? low : high,
                                 " is not in the vocabulary, which has ", vocabulary));
  }
}

struct Fused : torch::autograd::Function<Fused> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& labels,
                            const std::optional<at::Tensor>& rows,
                            const LinearCrossEntropyOptions& options, const Pass::Wanted& wanted) {
    const at::ScalarType type = options.compute_type.value_or(hidden.scalar_type());
    const bool all = !rows;
    const Rows chosen{
        .hidden = (all ? hidden : hidden.index_select(0, *rows)).to(type).contiguous(),
        .labels = all ? labels : labels.index_select(0, *rows)};
    const std::int64_t vocabulary = weight.size(0);
    check_labels(chosen.labels, vocabulary);
    const std::int64_t padding = std::max<std::int64_t>(options.padded_columns - vocabulary, 0);
    at::Tensor used = weight.to(type);
    if (padding > 0) used = at::constant_pad_nd(used, {0, 0, 0, padding});

    Pass pass(chosen, used, vocabulary, wanted);
    pass.run(std::max<std::int64_t>(options.chunk_bytes / (4 * used.size(0)), 1));

    auto gradients = c10::make_intrusive<Gradients>();
    if (wanted.hidden) {
      gradients->hidden = pass.hidden_gradient();
      if (!all) {
        gradients->hidden = at::zeros(hidden.sizes(), chosen.hidden.options())
                                .index_copy_(0, *rows, gradients->hidden);
      }
    }
    if (wanted.weight) {
      gradients->weight = pass.weight_gradient();
      if (padding > 0) gradients->weight = gradients->weight.narrow(0, 0, vocabulary);
      gradients->weight = gradients->weight.to(weight.scalar_type());
    }
    context->saved_data["gradients"] = c10::IValue::make_capsule(gradients);
    return pass.sum();
  }

  static variable_list backward(AutogradContext* context, const variable_list& upstream) {
    auto& gradients = static_cast<Gradients&>(*context->saved_data["gradients"].toCapsule());
    if (gradients.taken) {
      throw Error(
          "the loss of a GPT-2 has one backward: its gradient was computed in forward; call "
          "forward again");
    }
    gradients.taken = true;
    variable_list result(6);
    const at::NoGradGuard no_graph;
    if (gradients.hidden.defined()) result[0] = std::move(gradients.hidden).mul_(upstream[0]);
    if (gradients.weight.defined()) result[1] = std::move(gradients.weight).mul_(upstream[0]);
    return result;
  }
};

}  // namespace

LinearCrossEntropy linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                        const at::Tensor& labels,
                                        const LinearCrossEntropyOptions& options) {
  const at::Tensor counted = labels.ne(options.ignored_label);
  const std::int64_t count = counted.sum().item<std::int64_t>();
  std::optional<at::Tensor> rows;
  if (count < labels.numel()) rows = counted.nonzero().squeeze(1);
  const bool graph = at::GradMode::is_enabled();
  const Pass::Wanted wanted{.hidden = graph && hidden.requires_grad(),
                            .weight = graph && weight.requires_grad()};
  return {.sum = Fused::apply(hidden, weight, labels, rows, options, wanted), .count = count};
}

}  // namespace lockstep
