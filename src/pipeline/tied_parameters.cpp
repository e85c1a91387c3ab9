#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/error.h"
#include "pipeline/stage_gradients.h"
#include "pipeline/tensor_line.h"

namespace lockstep {
namespace {

constexpr int kTieTag = static_cast<int>(LineTag::ties);

std::string kind_of(const at::Tensor& tensor) {
  return tensor.defined() ? concat(tensor.scalar_type(), " ", tensor.sizes()) : std::string();
}

at::Tensor gradient_or_zero(const at::Tensor& parameter) {
  return parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
}

}  // namespace

TiedParameters::TiedParameters(const ProcessGroup& group, const PipelineOptions& options,
                               const std::vector<std::vector<std::string>>& all_names,
                               const std::vector<StageParameter>& own)
    : group_(group), when_(options.tie_sum) {
  std::map<std::string, int> stage_of;
  for (std::size_t stage = 0; stage < all_names.size(); ++stage) {
    for (const std::string& name : all_names[stage]) stage_of[name] = static_cast<int>(stage);
  }
  for (const auto& names : options.ties) {
    if (names.size() < 2) {
      throw InvalidArgument(
          concat("Pipeline: a tie has ", names.size(), " parameters; it must have two or more"));
    }
    Tie tie;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto found = stage_of.find(names[i]);
      if (found == stage_of.end()) {
        throw InvalidArgument(
            concat("Pipeline: ties name '", names[i], "', which is no parameter of any stage"));
      }
      if (!names_.insert(names[i]).second) {
        throw InvalidArgument(concat("Pipeline: '", names[i], "' is tied twice"));
      }
      if (i > 0) copies_.insert(names[i]);
      tie.places.push_back({.stage = found->second, .parameter = {}, .before = {}});
      const auto mine = std::ranges::find(own, names[i], &StageParameter::name);
      if (mine != own.end()) tie.places.back().parameter = mine->tensor;
    }
    tie.order.resize(names.size());
    std::iota(tie.order.begin(), tie.order.end(), std::size_t{0});
    std::ranges::stable_sort(tie.order, [&](std::size_t a, std::size_t b) {
      return tie.places[a].stage > tie.places[b].stage;
    });
    ties_.push_back(std::move(tie));
  }
}

// The value of one place at another: undefined on ranks that have neither, and on the one that
// sends it.
at::Tensor TiedParameters::moved(const Tie& tie, std::size_t from, std::size_t to,
                                 const at::Tensor& value) {
  const int stage = group_.rank();
  const int source = tie.places[from].stage, target = tie.places[to].stage;
  if (source == target) return source == stage ? value : at::Tensor();
  if (source == stage) {
    const at::Tensor sent = value.cpu().contiguous();
    leaving_.push_back(
        {.work = group_.isend(sent, {.peer = target, .tag = kTieTag}), .tensor = sent});
    return {};
  }
  if (target != stage) return {};
  const at::Tensor& like = tie.places[to].parameter;
  const at::Tensor arrived = at::empty(like.sizes(), like.options().device(at::kCPU));
  group_.recv(arrived, {.peer = source, .tag = kTieTag});
  return arrived.to(like.device());
}

// At the place where it is needed last, tie.sum_at(); undefined elsewhere.
at::Tensor TiedParameters::sum_of_gradients(const Tie& tie) {
  const std::size_t last = tie.sum_at();
  at::Tensor sum;
  for (const std::size_t from : tie.order) {
    const at::Tensor& own = tie.places[from].parameter;
    const at::Tensor part =
        moved(tie, from, last, own.defined() ? gradient_or_zero(own) : at::Tensor());
    if (part.defined()) sum = sum.defined() ? sum + part : part.clone();
  }
  return sum;
}

void TiedParameters::hand_out(Tie& tie) {
  const at::Tensor& own = tie.places[tie.sum_at()].parameter;
  const at::Tensor total = own.defined() ? own.grad() : at::Tensor();
  for (std::size_t i = 0; i < tie.places.size(); ++i) {
    if (i == tie.sum_at()) continue;
    const at::Tensor result = moved(tie, tie.sum_at(), i, total);
    if (result.defined()) tie.places[i].parameter.mutable_grad() = result.clone();
  }
}

void TiedParameters::share_values() {
  const at::NoGradGuard no_grad;
  for (const Tie& tie : ties_) {
    const std::string first =
        group_.broadcast_string(kind_of(tie.places[0].parameter), tie.places[0].stage);
    for (std::size_t i = 1; i < tie.places.size(); ++i) {
      const at::Tensor& own = tie.places[i].parameter;
      const bool fits = !own.defined() || kind_of(own) == first;
      for (const std::string& answer : group_.all_gather_string(fits ? "" : "no")) {
        if (answer.empty()) continue;
        throw InvalidArgument(concat("Pipeline: tied parameters differ; the first is ", first,
                                     ", number ", i, " of the list is not"));
      }
      const at::Tensor& value = tie.places[0].parameter;
      const at::Tensor arrived = moved(tie, 0, i, value.defined() ? value.detach() : at::Tensor());
      if (arrived.defined()) own.detach().copy_(arrived);
    }
  }
  wait_for_sends();
}

void TiedParameters::wait_for_sends() {
  for (Leaving& each : leaving_) each.work.wait();
  leaving_.clear();
}

void TiedParameters::set_aside() {
  for (Tie& tie : ties_) {
    for (Place& place : tie.places) {
      if (!place.parameter.defined()) continue;
      place.before = std::exchange(place.parameter.mutable_grad(), at::Tensor());
    }
  }
}

// What was there stands for all of a list already, and must not be added again for each of them.
void TiedParameters::add_up() {
  for (Tie& tie : ties_) {
    const at::Tensor sum = sum_of_gradients(tie);
    for (std::size_t i = 0; i < tie.places.size(); ++i) {
      Place& place = tie.places[i];
      if (!place.parameter.defined()) continue;
      at::Tensor& gradient = place.parameter.mutable_grad();
      gradient = std::exchange(place.before, at::Tensor());
      if (i == tie.sum_at()) gradient = gradient.defined() ? gradient + sum : sum;
    }
  }
}

void TiedParameters::begin_step() {
  if (when_ == TieSum::each_step) set_aside();
}

void TiedParameters::before_backward() {
  if (when_ == TieSum::each_micro_batch) set_aside();
}

void TiedParameters::after_backward() {
  const at::NoGradGuard no_grad;
  if (when_ == TieSum::each_micro_batch) add_up();
}

void TiedParameters::finish_step() {
  const at::NoGradGuard no_grad;
  if (when_ == TieSum::each_step) add_up();
  for (Tie& tie : ties_) hand_out(tie);
  wait_for_sends();
}

}  // namespace lockstep
