#include "pipeline/stage_gradients.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

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

}  // namespace lockstep
