#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// In what order a stage computes the micro-batches of a step. Both compute the same, bit for bit:
/// backward takes the micro-batches in their order.
enum class PipelineSchedule {
  /// All forwards, then all backwards. A stage keeps the activations of every micro-batch.
  gpipe,
  /// As few forwards as it takes to keep the last stage busy, then a forward and a backward in
  /// turn. Stage s of p keeps the activations of at most p - s micro-batches.
  one_forward_one_backward,
};

struct PipelineAction {
  enum class Kind { forward, backward };
  Kind kind = Kind::forward;
  int micro_batch = 0;

  bool operator==(const PipelineAction&) const = default;
};

struct PipelineShape {
  int stages = 1;
  int micro_batches = 1;
};

/// What a stage does in a step, in this order. A forward needs what the stage before has computed
/// of the micro-batch, a backward what the stage after has. Throws InvalidArgument.
std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, const PipelineShape& shape,
                                             int stage);

/// What each stage does at each tick, where an action takes one tick and its result is there at the
/// next: timeline[tick][stage], empty where the stage waits. An action that never finds what it
/// needs is our bug, and aborts.
using PipelineTimeline = std::vector<std::vector<std::optional<PipelineAction>>>;
PipelineTimeline pipeline_timeline(PipelineSchedule schedule, const PipelineShape& shape);

/// A line for each stage: "F0 F1 -- -- B0 B1".
std::string timeline_text(const PipelineTimeline& timeline);

/// How many micro-batches' activations a stage keeps at most.
int most_in_flight(const std::vector<PipelineAction>& actions);

/// The share of a step in which a stage has nothing to compute, (p - 1) / (m + p - 1), where all
/// stages take equally long and messages take no time. The same for both schedules.
double bubble_share(const PipelineShape& shape);

/// Divides a list into so many runs that the most expensive one costs as little as can be; equal
/// costs give runs whose lengths differ by at most one, the longer ones first. Returns the lengths.
/// Throws InvalidArgument for fewer costs than runs, and for costs that are not positive.
std::vector<int> split_by_cost(const std::vector<double>& costs, int runs);

/// How many rows of a batch each micro-batch gets: equal parts, rounded up, and what is left in the
/// last ones; never none. Throws InvalidArgument for fewer rows than micro-batches.
std::vector<std::int64_t> split_rows(std::int64_t rows, int micro_batches);

}  // namespace lockstep
