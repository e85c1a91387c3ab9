#include "train/step_graphs.h"

#include "lockstep/error.h"

namespace lockstep {

StepGraphs::StepGraphs(c10::Device device, const Options& options)
    : options_(options), recorder_(make_graph_recorder(device)), warm_ups_left_(options.warm_ups) {}

void StepGraphs::begin_step(StepKind kind) {
  if (mode_ == Mode::record) recorder_->forget();  // that step did not come to its end
  if (kind == StepKind::unusual) {
    mode_ = Mode::as_it_is;
  } else if (warm_ups_left_ > 0) {
    mode_ = Mode::warm_up;
  } else if (!recorded_) {
    mode_ = Mode::record;
    recorder_->begin_recording();
  } else {
    mode_ = Mode::replay;
    recorder_->begin_replays();
  }
}

void StepGraphs::run(const std::string& part, const PartOfStep& work) {
  switch (mode_) {
    case Mode::as_it_is:
      return recorder_->on_stream(work);
    case Mode::warm_up:
      return recorder_->warm_up(work);
    case Mode::record:
      if (!recorder_->has(part)) return recorder_->record(part, work);
      return recorder_->replay(part, work);
    case Mode::replay:
      LOCKSTEP_CHECK(recorder_->has(part), "a part of a step was not recorded");
      return recorder_->replay(part, work);
  }
}

void StepGraphs::end_step() {
  if (mode_ == Mode::warm_up) --warm_ups_left_;
  if (mode_ == Mode::record) recorded_ = true;
  mode_ = Mode::as_it_is;
}

void StepGraphs::forget() {
  recorder_->forget();
  recorded_ = false;
  warm_ups_left_ = options_.warm_ups;
  mode_ = Mode::as_it_is;
}

}  // namespace lockstep
