#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/ordered_reduction.h"
#include "lockstep/process_group.h"

namespace lockstep {

struct StageParameter {
  std::string name;
  at::Tensor tensor;
};

/// Gradients as means over the ranks that have the same stage, in flat buckets: the sums of rank 0,
/// 1, ... in this order on the CPU (docs/determinism.md), the backend's own with NCCL.
class DataMean {
 public:
  /// Gives all ranks the first one's weights. Throws InvalidArgument for ranks whose parameters
  /// differ.
  DataMean(const ProcessGroup& group, const std::vector<StageParameter>& parameters);

  /// A parameter without a gradient counts as zero.
  void reduce();

 private:
  struct Bucket {
    at::Tensor flat;
    std::vector<at::Tensor> parameters;
  };
  ProcessGroup group_;
  std::unique_ptr<OrderedReduction> ordered_;  // null: the backend reduces
  std::vector<Bucket> buckets_;
};

/// Parameters of several stages that stand for one: they begin with the value of the first of their
/// list, and their gradients become the sum over the list, added in its order.
class TiedParameters {
 public:
  /// `all_names` has the names of each stage's parameters. Throws InvalidArgument.
  TiedParameters(const ProcessGroup& group, const std::vector<std::vector<std::string>>& ties,
                 const std::vector<std::vector<std::string>>& all_names,
                 const std::vector<StageParameter>& own);

  void share_values();
  void add_gradients();
  /// Names that stand for a parameter which comes before in its list.
  const std::set<std::string>& copies() const { return copies_; }

 private:
  struct Place {
    int stage = 0;
    at::Tensor parameter;  // undefined where it is another stage's
  };
  using Tie = std::vector<Place>;
  enum class What { values, gradients };
  void exchange(const Tie& tie, What what);
  at::Tensor moved(const Tie& tie, std::size_t from, std::size_t to, const at::Tensor& value);

  ProcessGroup group_;
  std::vector<Tie> ties_;
  std::set<std::string> copies_;
};

}  // namespace lockstep
