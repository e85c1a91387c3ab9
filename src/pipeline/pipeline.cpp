#include "lockstep/pipeline.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "lockstep/clip_grad.h"
#include "lockstep/error.h"
#include "lockstep/random_scope.h"
#include "pipeline/pipeline_impl.h"

namespace lockstep {
namespace {

// Tells initial weights from what is drawn in steps.
constexpr std::uint64_t kInitialWeights = std::uint64_t{1} << 62;

struct StageModule : torch::nn::Module {
  StageModule() : torch::nn::Module("PipelineStage") {}
};

ModelPart make_part(const PipelinePart& entry, int number, std::uint64_t seed) {
  const RandomScope random(
      {.seed = seed, .purpose = kInitialWeights + static_cast<std::uint64_t>(number)},
      c10::Device(c10::DeviceType::CPU));
  ModelPart part = entry.make();
  if (!part.forward) {
    throw InvalidArgument(concat("Pipeline: part '", entry.name, "' has no forward"));
  }
  return part;
}

void check_parts(const std::vector<PipelinePart>& list) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string& name = list[i].name;
    if (name.empty() || name.find('.') != std::string::npos || !names.insert(name).second) {
      throw InvalidArgument(concat("Pipeline: part ", i, " is called '", name,
                                   "'; each needs a name of its own, without dots"));
    }
    if (!list[i].make) throw InvalidArgument(concat("Pipeline: part '", name, "' has no make"));
  }
}

std::vector<int> stage_lengths(const std::vector<PipelinePart>& list, const std::vector<int>& split,
                               int stages) {
  if (split.empty()) {
    std::vector<double> costs;
    for (const PipelinePart& part : list) costs.push_back(part.cost);
    return split_by_cost(costs, stages);
  }
  std::int64_t sum = 0;
  bool positive = true;
  for (const int length : split) {
    sum += length;
    positive = positive && length > 0;
  }
  if (!positive || static_cast<int>(split.size()) != stages ||
      sum != static_cast<std::int64_t>(list.size())) {
    std::string text;
    for (const int length : split) text += concat(text.empty() ? "" : " + ", length);
    throw InvalidArgument(concat("Pipeline: split is ", text, "; it must divide ", list.size(),
                                 " parts among ", stages, " stages, at least one each"));
  }
  return split;
}

// What must be the same on all ranks, in one line.
std::string options_text(const PipelineOptions& options, const std::vector<PipelinePart>& list,
                         const std::vector<int>& lengths) {
  std::string text = concat(options.micro_batches, " micro-batches, ",
                            options.schedule == PipelineSchedule::gpipe ? "gpipe" : "1F1B",
                            ", seed ", options.seed, ", parts");
  for (const PipelinePart& part : list) text += " " + part.name;
  text += ", divided";
  for (const int length : lengths) text += concat(" ", length);
  if (options.tie_sum == TieSum::each_micro_batch) text += ", ties added each micro-batch";
  for (const auto& tie : options.ties) {
    text += ", tie";
    for (const std::string& name : tie) text += " " + name;
  }
  return text;
}

}  // namespace

Pipeline::Impl::Impl(const ProcessGroup& group, const std::vector<PipelinePart>& list,
                     const PipelineOptions& options)
    : group(group), options(options) {
  if (!group.is_member()) {
    throw InvalidArgument("Pipeline: this rank is not a member of the group");
  }
  if (options.micro_batches < 1) {
    throw InvalidArgument(
        concat("Pipeline: micro_batches is ", options.micro_batches, "; it must be at least 1"));
  }
  if (options.device) device = *options.device;
  stage = group.rank();
  stages = group.size();
  check_parts(list);
  const std::vector<int> lengths = stage_lengths(list, options.split, stages);
  const std::string own = options_text(options, list, lengths);
  const std::vector<std::string> all = this->group.all_gather_string(own);
  for (int other = 0; other < stages; ++other) {
    if (all[other] == all[0]) continue;
    throw InvalidArgument(concat("Pipeline: stage ", other, " was given '", all[other],
                                 "', stage 0 '", all[0], "'; all ranks must be given the same"));
  }
  for (int before = 0; before < stage; ++before) first_part += lengths[before];
  make_parts(list, lengths[stage]);
  agree_on_names();
  agree_on_saved_names(list);
  if (trains_data_parallel()) {
    std::vector<StageParameter> tied, others;
    for (const StageParameter& each : parameters) {
      (ties && ties->names().contains(each.name) ? tied : others).push_back(each);
    }
    if (!others.empty()) data_mean = std::make_unique<DataMean>(options.data_group, others);
    if (!tied.empty()) tied_mean = std::make_unique<DataMean>(options.data_group, tied);
  }
  make_lines();
}

void Pipeline::Impl::make_parts(const std::vector<PipelinePart>& list, int count) {
  module = std::make_shared<StageModule>();
  for (int number = first_part; number < first_part + count; ++number) {
    part_names.push_back(list[number].name);
    parts.push_back(make_part(list[number], number, options.seed));
    if (parts.back().module) module->register_module(list[number].name, parts.back().module);
  }
  module->to(device);
  for (const auto& item : module->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    const bool seen = std::ranges::any_of(
        parameters, [&](const StageParameter& each) { return each.tensor.is_same(item.value()); });
    if (!seen) parameters.push_back({.name = item.key(), .tensor = item.value()});
  }
}

void Pipeline::Impl::agree_on_names() {
  if (options.ties.empty()) return;
  std::string own;
  for (const StageParameter& each : parameters) own += each.name + "\n";
  std::vector<std::vector<std::string>> names;
  for (const std::string& text : group.all_gather_string(own)) {
    names.emplace_back();
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find('\n', at);
      names.back().push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  ties = std::make_unique<TiedParameters>(group, options, names, parameters);
  ties->share_values();
}

void Pipeline::Impl::make_lines() {
  const auto out = [&](int peer, LineTag tag) {
    return TensorSender({.group = group, .peer = peer, .tag = tag});
  };
  const auto in = [&](int peer, LineTag tag) {
    return TensorReceiver({.group = group,
                           .peer = peer,
                           .tag = tag,
                           .device = device,
                           .who = concat("stage ", stage, ", from stage ", peer)});
  };
  if (!is_first()) {
    activations_in = in(stage - 1, LineTag::activations);
    evaluation_in = in(stage - 1, LineTag::evaluation);
    gradients_out = out(stage - 1, LineTag::gradients);
  }
  if (!is_last()) {
    activations_out = out(stage + 1, LineTag::activations);
    evaluation_out = out(stage + 1, LineTag::evaluation);
    gradients_in = in(stage + 1, LineTag::gradients);
  }
}

Pipeline::Pipeline(const ProcessGroup& group, const std::vector<PipelinePart>& parts,
                   const PipelineOptions& options)
    : impl_(std::make_unique<Impl>(group, parts, options)) {}
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

int Pipeline::stage() const {
  return impl_->stage;
}
int Pipeline::stages() const {
  return impl_->stages;
}
const std::vector<std::string>& Pipeline::parts() const {
  return impl_->part_names;
}
const std::shared_ptr<torch::nn::Module>& Pipeline::module() const {
  return impl_->module;
}
void Pipeline::train(bool on) {
  impl_->module->train(on);
}
void Pipeline::zero_grad() {
  for (const StageParameter& each : impl_->parameters) each.tensor.mutable_grad().reset();
}
std::int64_t Pipeline::next_step() const {
  return impl_->next_step;
}
void Pipeline::set_next_step(std::int64_t step) {
  impl_->next_step = step;
}

double Pipeline::mean_loss(const PipelineResult& result) {
  const at::NoGradGuard no_grad;
  if (is_last() && !result.loss.defined()) {
    throw InvalidArgument("Pipeline: mean_loss() of a result without a loss");
  }
  const at::Tensor loss = at::zeros({1}, at::kDouble);
  if (is_last()) loss.copy_(result.loss.reshape({1}));
  if (is_last() && impl_->trains_data_parallel()) {
    impl_->options.data_group.all_reduce(loss, {.op = ReduceOp::avg});
  }
  impl_->group.broadcast(loss, {.root = stages() - 1});
  return loss.item<double>();
}

std::vector<PipelineTimes> Pipeline::gather_times(const PipelineTimes& own) {
  const at::NoGradGuard no_grad;
  constexpr int kTimes = 6;
  const at::Tensor mine = at::empty({kTimes}, at::kDouble);
  const double values[kTimes] = {own.step,    own.forward, own.backward,
                                 own.waiting, own.sending, own.reducing};
  std::ranges::copy(values, mine.mutable_data_ptr<double>());
  const at::Tensor all = at::empty({kTimes * stages()}, at::kDouble);
  impl_->group.all_gather_into_tensor(all, mine);
  std::vector<PipelineTimes> times;
  for (int stage = 0; stage < stages(); ++stage) {
    const double* of = all.const_data_ptr<double>() + std::ptrdiff_t{kTimes} * stage;
    times.push_back({.step = of[0],
                     .forward = of[1],
                     .backward = of[2],
                     .waiting = of[3],
                     .sending = of[4],
                     .reducing = of[5]});
  }
  return times;
}

double Pipeline::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  std::vector<NamedParameter> all, once;
  for (const StageParameter& each : impl_->parameters) {
    if (!each.tensor.grad().defined()) continue;
    all.push_back({.name = each.name, .tensor = each.tensor});
    if (!impl_->ties || !impl_->ties->copies().contains(each.name)) once.push_back(all.back());
  }
  const double own = once.empty() ? 0 : grad_norm(once).item<double>();
  const at::Tensor norms = at::empty({stages()}, at::kDouble);
  impl_->group.all_gather_into_tensor(norms, at::scalar_tensor(own, at::kDouble).reshape({1}));
  double squares = 0;
  for (int stage = 0; stage < stages(); ++stage) {
    squares += std::pow(norms.const_data_ptr<double>()[stage], 2);
  }
  const double norm = std::sqrt(squares);
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1 && !all.empty()) scale_gradients(all, factor);
  return norm;
}

double measured_bubble(const std::vector<PipelineTimes>& stages) {
  double computing = 0, longest = 0;
  for (const PipelineTimes& each : stages) {
    computing += each.computing();
    longest = std::max(longest, each.step);
  }
  if (stages.empty() || longest <= 0) return 0;
  return 1 - computing / (static_cast<double>(stages.size()) * longest);
}

std::vector<double> parameter_counts(const std::vector<PipelinePart>& parts) {
  check_parts(parts);
  std::vector<double> counts;
  for (const PipelinePart& entry : parts) {
    const ModelPart part = make_part(entry, static_cast<int>(counts.size()), 0);
    double count = 0;
    if (part.module) {
      for (const at::Tensor& parameter : part.module->parameters()) {
        count += static_cast<double>(parameter.numel());
      }
    }
    counts.push_back(std::max(count, 1.0));  // a part without any still is one
  }
  return counts;
}

}  // namespace lockstep
