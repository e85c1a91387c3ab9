#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/ordered_reduction.h"
#include "lockstep/pipeline.h"
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

/// Parameters of several stages that stand for one. They begin with the value of the first of their
/// list. Their gradients become the sum over the list, on all of them; what a backward reaches
/// first, which is the last stage's, is added first, as autograd would.
class TiedParameters {
 public:
  /// `all_names` has the names of each stage's parameters. Throws InvalidArgument.
  TiedParameters(const ProcessGroup& group, const PipelineOptions& options,
                 const std::vector<std::vector<std::string>>& all_names,
                 const std::vector<StageParameter>& own);

  void share_values();

  /// Around a step, and around each backward in it. All stages call them.
  void begin_step();
  void before_backward();
  void after_backward();
  void finish_step();

  /// Names that are tied, and those of them that stand for one which comes before in its list.
  const std::set<std::string>& names() const { return names_; }
  const std::set<std::string>& copies() const { return copies_; }

 private:
  struct Place {
    int stage = 0;
    at::Tensor parameter;  // undefined where it is another stage's
    at::Tensor before;     // its gradient before what is being added up
  };
  struct Tie {
    std::vector<Place> places;
    std::vector<std::size_t> order;  // in which gradients are added: the last stage's first
    std::size_t sum_at() const { return order.back(); }
  };
  void set_aside();
  void add_up();
  void wait_for_sends();
  at::Tensor moved(const Tie& tie, std::size_t from, std::size_t to, const at::Tensor& value);
  at::Tensor sum_of_gradients(const Tie& tie);
  void hand_out(Tie& tie);

  struct Leaving {
    Work work;
    at::Tensor tensor;
  };
  ProcessGroup group_;
  TieSum when_;
  std::vector<Tie> ties_;
  std::set<std::string> names_, copies_;
  std::vector<Leaving> leaving_;
};

}  // namespace lockstep
