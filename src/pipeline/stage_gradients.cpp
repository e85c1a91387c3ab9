#include "pipeline/stage_gradients.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "comm/group_impl.h"
#include "lockstep/error.h"
#include "pipeline/tensor_line.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBucketBytes = 25 << 20;

std::string description_of(const std::vector<StageParameter>& parameters) {
  std::string text;
  for (const StageParameter& each : parameters) {
    text += concat(each.name, " ", each.tensor.scalar_type(), " ", each.tensor.sizes(), "; ");
  }
  return text;
}

}  // namespace

DataMean::DataMean(const ProcessGroup& group, const std::vector<StageParameter>& parameters)
    : group_(group) {
  const std::string own = description_of(parameters);
  if (group_.broadcast_string(own) != own) {
    throw InvalidArgument(concat("Pipeline: rank ", group_.global_ranks()[group_.rank()],
                                 " has other parameters than rank ", group_.global_ranks()[0],
                                 " of its data group; all must have the same stage"));
  }
  const at::NoGradGuard no_grad;
  for (const StageParameter& each : parameters) {
    at::Tensor value = each.tensor.detach().contiguous();
    group_.broadcast(value);
    each.tensor.detach().copy_(value);
  }
  std::map<at::ScalarType, std::vector<at::Tensor>> filling;
  std::map<at::ScalarType, std::int64_t> bytes;
  const auto close = [&](at::ScalarType type) {
    std::int64_t length = 0;
    for (const at::Tensor& parameter : filling[type]) length += parameter.numel();
    if (length > 0) {
      buckets_.push_back({.flat = at::empty({length}, filling[type].front().options()),
                          .parameters = filling[type]});
    }
    filling[type].clear();
    bytes[type] = 0;
  };
  for (const StageParameter& each : parameters) {
    const at::ScalarType type = each.tensor.scalar_type();
    filling[type].push_back(each.tensor);
    bytes[type] += static_cast<std::int64_t>(each.tensor.nbytes());
    if (bytes[type] >= kBucketBytes) close(type);
  }
  for (const auto& [type, rest] : std::map(filling)) close(type);
  if (!buckets_.empty() && group_.impl()->serves_on_host(buckets_.front().flat.device())) {
    ordered_ = std::make_unique<OrderedReduction>(group_.impl());
  }
}

void DataMean::reduce() {
  const at::NoGradGuard no_grad;
  const auto each_slice = [](const Bucket& bucket, auto visit) {
    std::int64_t at = 0;
    for (const at::Tensor& parameter : bucket.parameters) {
      visit(parameter, bucket.flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
      at += parameter.numel();
    }
  };
  std::vector<OrderedReduction::FuturePtr> futures;
  std::vector<Work> works;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    each_slice(buckets_[i], [](const at::Tensor& parameter, const at::Tensor& slice) {
      if (parameter.grad().defined()) {
        slice.copy_(parameter.grad());
      } else {
        slice.zero_();
      }
    });
    if (ordered_) {
      const bool last = i + 1 == buckets_.size();
      futures.push_back(ordered_->mean(buckets_[i].flat, last
                                                             ? OrderedReduction::Urgency::wait_now
                                                             : OrderedReduction::Urgency::overlap));
    } else {
      works.push_back(group_.all_reduce(buckets_[i].flat, {.op = ReduceOp::avg, .async_op = true}));
    }
  }
  for (const auto& future : futures) future->waitAndThrow();
  for (Work& work : works) work.wait();
  for (const Bucket& bucket : buckets_) {
    each_slice(bucket, [](const at::Tensor& parameter, const at::Tensor& slice) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) gradient = at::empty_like(parameter);
      gradient.copy_(slice);
    });
  }
}

TiedParameters::TiedParameters(const ProcessGroup& group,
                               const std::vector<std::vector<std::string>>& ties,
                               const std::vector<std::vector<std::string>>& all_names,
                               const std::vector<StageParameter>& own)
    : group_(group) {
  std::map<std::string, int> stage_of;
  for (std::size_t stage = 0; stage < all_names.size(); ++stage) {
    for (const std::string& name : all_names[stage]) stage_of[name] = static_cast<int>(stage);
  }
  std::set<std::string> tied;
  for (const auto& names : ties) {
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
      if (!tied.insert(names[i]).second) {
        throw InvalidArgument(concat("Pipeline: '", names[i], "' is tied twice"));
      }
      if (i > 0) copies_.insert(names[i]);
      tie.push_back({.stage = found->second, .parameter = {}});
      const auto mine = std::ranges::find(own, names[i], &StageParameter::name);
      if (mine != own.end()) tie.back().parameter = mine->tensor;
    }
    ties_.push_back(std::move(tie));
  }
}

// The value of entry `from` at entry `to`: undefined on a rank that has neither, and on the sender.
at::Tensor TiedParameters::moved(const Tie& tie, std::size_t from, std::size_t to,
                                 const at::Tensor& value) {
  const int stage = group_.rank(), tag = static_cast<int>(LineTag::ties);
  if (tie[from].stage == stage && tie[to].stage == stage) return value;
  if (tie[from].stage == stage) {
    group_.send(value.cpu().contiguous(), {.peer = tie[to].stage, .tag = tag});
    return {};
  }
  if (tie[to].stage != stage) return {};
  const at::Tensor& like = tie[to].parameter;
  const at::Tensor arrived = at::empty(like.sizes(), like.options().device(at::kCPU));
  group_.recv(arrived, {.peer = tie[from].stage, .tag = tag});
  return arrived.to(like.device());
}

void TiedParameters::exchange(const Tie& tie, What what) {
  const at::NoGradGuard no_grad;
  const auto value_at = [&](std::size_t i) -> at::Tensor {
    const at::Tensor& parameter = tie[i].parameter;
    if (!parameter.defined()) return {};
    if (what == What::values) return parameter.detach();
    return parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
  };
  at::Tensor total = value_at(0);
  if (what == What::gradients) {
    if (total.defined()) total = total.clone();
    for (std::size_t i = 1; i < tie.size(); ++i) {
      const at::Tensor part = moved(tie, i, 0, value_at(i));
      if (part.defined() && total.defined()) total += part;
    }
  }
  for (std::size_t i = 0; i < tie.size(); ++i) {
    const at::Tensor result = i == 0 ? total : moved(tie, 0, i, total);
    if (!result.defined() || !tie[i].parameter.defined()) continue;
    if (what == What::values) {
      tie[i].parameter.detach().copy_(result);
    } else {
      tie[i].parameter.mutable_grad() = result.clone();
    }
  }
}

void TiedParameters::share_values() {
  for (const Tie& tie : ties_) {
    const std::string shape = tie[0].parameter.defined() ? concat(tie[0].parameter.scalar_type(),
                                                                  " ", tie[0].parameter.sizes())
                                                         : std::string();
    const std::string first = group_.broadcast_string(shape, tie[0].stage);
    for (std::size_t i = 1; i < tie.size(); ++i) {
      const at::Tensor& own = tie[i].parameter;
      const bool fits = !own.defined() || concat(own.scalar_type(), " ", own.sizes()) == first;
      for (const std::string& answer : group_.all_gather_string(fits ? "" : "no")) {
        if (answer.empty()) continue;
        throw InvalidArgument(concat("Pipeline: tied parameters differ; the first is ", first,
                                     ", number ", i, " of the list is not"));
      }
    }
    exchange(tie, What::values);
  }
}

void TiedParameters::add_gradients() {
  for (const Tie& tie : ties_) exchange(tie, What::gradients);
}

}  // namespace lockstep
