#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/error.h"
#include "lockstep/random_scope.h"
#include "pipeline/pipeline_impl.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Tells random numbers of evaluations from those of the step that follows.
constexpr std::uint64_t kEvaluation = std::uint64_t{1} << 61;

/// Adds the time that it lives to a number of seconds.
class [[nodiscard]] Spent {
 public:
  explicit Spent(double& seconds) : seconds_(seconds) {}
  Spent(const Spent&) = delete;
  Spent& operator=(const Spent&) = delete;
  ~Spent() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

// How many rows the tensors of a batch have, all alike.
std::int64_t common_rows(const Tensors& tensors, const char* what) {
  if (tensors.empty()) throw InvalidArgument(concat("Pipeline: this stage needs ", what));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].dim() == 0) {
      throw InvalidArgument(
          concat("Pipeline: ", what, "[", i, "] has no rows to divide into micro-batches"));
    }
    if (tensors[i].size(0) != tensors[0].size(0)) {
      throw InvalidArgument(concat("Pipeline: ", what, "[", i, "] has ", tensors[i].size(0),
                                   " rows, ", what, "[0] has ", tensors[0].size(0)));
    }
  }
  return tensors[0].size(0);
}

}  // namespace

void Pipeline::Impl::explain(const PeerLost& lost) const {
  std::string who;
  for (const int peer : lost.peers()) {
    const auto& ranks = group.global_ranks();
    const auto found = std::ranges::find(ranks, peer);
    who += concat(who.empty() ? "" : ", ", "rank ", peer,
                  found == ranks.end() ? std::string(" of another pipeline")
                                       : concat(", stage ", found - ranks.begin()));
  }
  throw PeerLost(concat("Pipeline: stage ", stage, " of ", stages, " lost ",
                        who.empty() ? std::string("a neighbour") : who, ": ", lost.what()),
                 {.rank = lost.rank(), .peers = lost.peers(), .operation = lost.operation()});
}

template <typename Call>
void Pipeline::Impl::guarded(Call call) {
  if (failed) {
    throw Error(concat("Pipeline: stage ", stage,
                       " failed in an earlier step; make a new World and Pipeline"));
  }
  // Others may wait for what this rank will not send, in either group.
  const auto give_up = [&] {
    failed = true;
    group.abort();
    if (options.data_group.is_member()) options.data_group.abort();
  };
  try {
    call();
  } catch (const PeerLost& lost) {
    give_up();
    explain(lost);
  } catch (const Timeout& late) {
    give_up();
    throw Timeout(concat("Pipeline: stage ", stage, " of ", stages, ": ", late.what()),
                  late.missing());
  } catch (...) {
    give_up();
    throw;
  }
}

Pipeline::Impl::Step Pipeline::Impl::begin(const Tensors& inputs, const Tensors& targets,
                                           bool evaluates, bool needs_targets) {
  Step step;
  step.evaluates = evaluates;
  if (is_first()) {
    step.inputs = inputs;
    step.all_rows = common_rows(inputs, "inputs");
  }
  if (is_last() && needs_targets) {
    if (!options.loss) throw InvalidArgument("Pipeline: options.loss is not set");
    const std::int64_t rows = common_rows(targets, "targets");
    if (is_first() && rows != step.all_rows) {
      throw InvalidArgument(
          concat("Pipeline: the targets have ", rows, " rows, the inputs ", step.all_rows));
    }
    step.targets = targets;
    step.all_rows = rows;
  }
  if (step.all_rows > 0) step.rows = split_rows(step.all_rows, options.micro_batches);
  step.result.losses.resize(needs_targets && is_last() ? options.micro_batches : 0);
  return step;
}

Tensors Pipeline::Impl::rows_of(const Step& step, const Tensors& tensors, int micro_batch) const {
  std::int64_t begin = 0;
  for (int before = 0; before < micro_batch; ++before) begin += step.rows[before];
  Tensors rows;
  for (const at::Tensor& tensor : tensors) {
    rows.push_back(tensor.narrow(0, begin, step.rows[micro_batch]).to(device));
  }
  return rows;
}

// Random numbers depend on the part, not on the stage that has it.
Tensors Pipeline::Impl::run_parts(const Step& step, Tensors x, int micro_batch) {
  const bool parallel = trains_data_parallel();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const RandomScope random({.seed = options.seed,
                              .step = next_step,
                              .slot = parallel ? options.data_group.rank() : 0,
                              .micro_batch = micro_batch,
                              .purpose = static_cast<std::uint64_t>(first_part) + i +
                                         (step.evaluates ? kEvaluation : 0)},
                             device);
    x = parts[i].forward(x);
    if (x.empty() || std::ranges::any_of(x, [](const at::Tensor& t) { return !t.defined(); })) {
      throw InvalidArgument(
          concat("Pipeline: part '", part_names[i], "' gave no tensor, or one that is undefined"));
    }
  }
  return x;
}

void Pipeline::Impl::take_loss(Step& step, Kept& kept, int micro_batch) {
  if (step.rows[micro_batch] != kept.rows) {
    throw InvalidArgument(concat("Pipeline: micro-batch ", micro_batch, " has ", kept.rows,
                                 " rows of inputs and ", step.rows[micro_batch],
                                 " of targets; give first and last stage the same batch"));
  }
  at::Tensor loss = options.loss(kept.outputs, rows_of(step, step.targets, micro_batch));
  if (!loss.defined() || loss.numel() != 1) {
    throw InvalidArgument("Pipeline: options.loss must return one number");
  }
  step.result.losses[micro_batch] = loss.detach();
  if (options.loss_weight == LossWeight::rows && step.rows[micro_batch] != step.all_rows) {
    loss =
        loss * (static_cast<double>(step.rows[micro_batch]) / static_cast<double>(step.all_rows));
  }
  const at::Tensor share = loss.detach();
  step.result.loss = step.result.loss.defined() ? step.result.loss + share : share;
  kept.outputs = {loss};
}

Pipeline::Impl::Kept Pipeline::Impl::stage_forward(Step& step, int micro_batch) {
  PipelineTimes& times = step.result.times;
  auto& in = step.evaluates ? evaluation_in : activations_in;
  auto& out = step.evaluates ? evaluation_out : activations_out;
  Kept kept;
  if (is_first()) {
    kept.inputs = rows_of(step, step.inputs, micro_batch);
    kept.rows = step.rows[micro_batch];
  } else {
    const Spent waiting(times.waiting);
    Parcel parcel = in->receive();
    kept.inputs = std::move(parcel.tensors);
    kept.rows = parcel.rows;
  }
  {
    const Spent computing(times.forward);
    kept.outputs = run_parts(step, kept.inputs, micro_batch);
    if (is_last() && !step.targets.empty()) take_loss(step, kept, micro_batch);
  }
  if (out) {
    const Spent sending(times.sending);
    out->send({.tensors = kept.outputs, .micro_batch = micro_batch, .rows = kept.rows});
  }
  return kept;
}

void Pipeline::Impl::stage_backward(Step& step, int micro_batch) {
  PipelineTimes& times = step.result.times;
  const auto found = step.kept.find(micro_batch);
  LOCKSTEP_CHECK(found != step.kept.end(), micro_batch);
  Kept kept = std::move(found->second);
  step.kept.erase(found);
  Tensors roots, gradients;
  if (is_last()) {
    roots = kept.outputs;  // the loss
  } else {
    const Spent waiting(times.waiting);
    const Parcel parcel = gradients_in->receive();
    for (std::size_t i = 0; i < parcel.tensors.size(); ++i) {
      if (!parcel.tensors[i].defined()) continue;
      roots.push_back(kept.outputs.at(i));
      gradients.push_back(parcel.tensors[i]);
    }
    activations_out->finish_before(micro_batch + 1);  // its gradient is here: it has arrived
  }
  {
    const Spent computing(times.backward);
    if (ties) ties->before_backward();
    if (!roots.empty() && roots.front().requires_grad()) {
      torch::autograd::backward(roots, gradients);
    }
  }
  if (gradients_out) {
    const Spent sending(times.sending);
    Parcel parcel{.tensors = {}, .micro_batch = micro_batch, .rows = kept.rows};
    for (const at::Tensor& input : kept.inputs) {
      parcel.tensors.push_back(input.requires_grad() ? input.grad() : at::Tensor());
    }
    gradients_out->send(parcel);
  }
  const Spent reducing(times.reducing);
  if (ties) ties->after_backward();  // after what the stage before waits for
}

void Pipeline::Impl::run_training(Step& step) {
  const int count = options.micro_batches;
  const PipelineShape shape{.stages = stages, .micro_batches = count};
  PipelineTimes& times = step.result.times;
  if (ties) ties->begin_step();
  if (activations_in) activations_in->expect(count);
  if (gradients_in) gradients_in->expect(count);
  // When the stage before sends a forward, it has had the gradients of so many fewer.
  const int ahead =
      options.schedule == PipelineSchedule::gpipe ? count : std::min(stages - stage + 1, count);
  for (const PipelineAction& action : pipeline_actions(options.schedule, shape, stage)) {
    if (activations_in) activations_in->poll();
    if (gradients_in) gradients_in->poll();
    if (action.kind == PipelineAction::Kind::forward) {
      step.kept[action.micro_batch] = stage_forward(step, action.micro_batch);
      if (gradients_out) gradients_out->finish_before(action.micro_batch - ahead + 1);
    } else {
      stage_backward(step, action.micro_batch);
    }
  }
  {
    const Spent reducing(times.reducing);
    if (data_mean) data_mean->reduce();
    if (ties) ties->finish_step();
    if (tied_mean) tied_mean->reduce();
  }
  const Spent sending(times.sending);
  if (activations_out) activations_out->finish();
  if (gradients_out) gradients_out->finish();
}

void Pipeline::Impl::run_evaluation(Step& step) {
  const at::NoGradGuard no_grad;
  if (evaluation_in) evaluation_in->expect(options.micro_batches);
  for (int micro_batch = 0; micro_batch < options.micro_batches; ++micro_batch) {
    if (evaluation_in) evaluation_in->poll();
    Kept kept = stage_forward(step, micro_batch);
    if (is_last()) step.outputs.push_back(std::move(kept.outputs));
  }
  if (evaluation_out) evaluation_out->finish();
}

PipelineResult Pipeline::train_step(const Tensors& inputs, const Tensors& targets) {
  Impl& self = *impl_;
  Impl::Step step;
  self.guarded([&] {
    double seconds = 0;
    {
      const Spent all(seconds);
      step = self.begin(inputs, targets, /*evaluates=*/false, /*needs_targets=*/true);
      self.run_training(step);
    }
    step.result.times.step = seconds;
  });
  ++self.next_step;
  return std::move(step.result);
}

PipelineResult Pipeline::evaluate(const Tensors& inputs, const Tensors& targets) {
  Impl& self = *impl_;
  Impl::Step step;
  self.guarded([&] {
    double seconds = 0;
    {
      const Spent all(seconds);
      step = self.begin(inputs, targets, /*evaluates=*/true, /*needs_targets=*/true);
      self.run_evaluation(step);
    }
    step.result.times.step = seconds;
  });
  return std::move(step.result);
}

Tensors Pipeline::forward(const Tensors& inputs) {
  Impl& self = *impl_;
  Tensors joined;
  self.guarded([&] {
    Impl::Step step = self.begin(inputs, {}, /*evaluates=*/true, /*needs_targets=*/false);
    self.run_evaluation(step);
    if (step.outputs.empty()) return;
    for (std::size_t i = 0; i < step.outputs.front().size(); ++i) {
      Tensors pieces;
      for (const Tensors& outputs : step.outputs) pieces.push_back(outputs.at(i));
      joined.push_back(at::cat(pieces, 0));
    }
  });
  return joined;
}

}  // namespace lockstep
