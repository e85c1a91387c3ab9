#include <algorithm>
#include <set>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/pipeline_schedule.h"

namespace lockstep {
namespace {

using Kind = PipelineAction::Kind;

void check_pipeline_shape(const PipelineShape& shape) {
  if (shape.stages < 1 || shape.micro_batches < 1) {
    throw InvalidArgument(concat("Pipeline: ", shape.stages, " stages and ", shape.micro_batches,
                                 " micro-batches; there must be at least one of each"));
  }
}

}  // namespace

std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, const PipelineShape& shape,
                                             int stage) {
  check_pipeline_shape(shape);
  if (stage < 0 || stage >= shape.stages) {
    throw InvalidArgument(concat("Pipeline: stage ", stage, " is outside [0, ", shape.stages, ")"));
  }
  // Forwards before the first backward. The last stage's first backward comes right after its
  // first forward; each stage before it is one forward further by then.
  const int ahead = schedule == PipelineSchedule::gpipe
                        ? shape.micro_batches
                        : std::min(shape.stages - stage, shape.micro_batches);
  std::vector<PipelineAction> actions;
  int next_forward = 0;
  for (; next_forward < ahead; ++next_forward) actions.push_back({Kind::forward, next_forward});
  for (int done = 0; done < shape.micro_batches; ++done) {
    actions.push_back({Kind::backward, done});
    if (next_forward < shape.micro_batches) actions.push_back({Kind::forward, next_forward++});
  }
  return actions;
}

PipelineTimeline pipeline_timeline(PipelineSchedule schedule, const PipelineShape& shape) {
  check_pipeline_shape(shape);
  std::vector<std::vector<PipelineAction>> lists;
  for (int stage = 0; stage < shape.stages; ++stage) {
    lists.push_back(pipeline_actions(schedule, shape, stage));
  }
  std::vector<std::size_t> at(lists.size(), 0);
  std::set<std::pair<int, int>> forwards, backwards;  // (stage, micro-batch) of earlier ticks
  const auto can_run = [&](int stage, const PipelineAction& action) {
    if (action.kind == Kind::forward) {
      return stage == 0 || forwards.contains({stage - 1, action.micro_batch});
    }
    return stage == shape.stages - 1 || backwards.contains({stage + 1, action.micro_batch});
  };
  PipelineTimeline timeline;
  const std::size_t actions = 2 * static_cast<std::size_t>(shape.micro_batches);
  while (std::ranges::any_of(at, [&](std::size_t done) { return done < actions; })) {
    std::vector<std::optional<PipelineAction>> tick(lists.size());
    for (int stage = 0; stage < shape.stages; ++stage) {
      if (at[stage] == actions || !can_run(stage, lists[stage][at[stage]])) continue;
      tick[stage] = lists[stage][at[stage]++];
    }
    bool moved = false;
    for (int stage = 0; stage < shape.stages; ++stage) {
      if (!tick[stage]) continue;
      moved = true;
      auto& done = tick[stage]->kind == Kind::forward ? forwards : backwards;
      done.insert({stage, tick[stage]->micro_batch});
    }
    LOCKSTEP_CHECK(moved, "all ", shape.stages, " stages wait at tick ", timeline.size());
    timeline.push_back(std::move(tick));
  }
  return timeline;
}

std::string timeline_text(const PipelineTimeline& timeline) {
  std::string text;
  const std::size_t stages = timeline.empty() ? 0 : timeline.front().size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::string line;
    for (const auto& tick : timeline) {
      const auto& action = tick[stage];
      line += line.empty() ? "" : " ";
      line += action ? concat(action->kind == Kind::forward ? "F" : "B", action->micro_batch)
                     : std::string("--");
    }
    text += line + "\n";
  }
  return text;
}

int most_in_flight(const std::vector<PipelineAction>& actions) {
  int now = 0, most = 0;
  for (const PipelineAction& action : actions) {
    now += action.kind == Kind::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

double bubble_share(const PipelineShape& shape) {
  check_pipeline_shape(shape);
  return (shape.stages - 1.0) / (shape.micro_batches + shape.stages - 1.0);
}

}  // namespace lockstep
