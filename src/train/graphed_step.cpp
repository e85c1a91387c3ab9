#include "lockstep/graphed_step.h"

#include <utility>

#include "lockstep/error.h"
#include "train/step_graphs.h"

namespace lockstep {
namespace {

int checked(int warm_ups) {
  if (warm_ups >= 1) return warm_ups;
  throw InvalidArgument(concat("GraphedStep: warm_ups is ", warm_ups, "; it must be at least 1"));
}

}  // namespace

struct GraphedStep::Impl {
  Impl(std::function<void()> work, int warm_ups)
      : work(std::move(work)), graphs(c10::Device(c10::kCUDA), {.warm_ups = warm_ups}) {}

  std::function<void()> work;
  StepGraphs graphs;
};

GraphedStep::GraphedStep(std::function<void()> work, GraphedStepOptions options)
    : impl_(std::make_unique<Impl>(std::move(work), checked(options.warm_ups))) {}

GraphedStep::~GraphedStep() = default;

void GraphedStep::run() {
  impl_->graphs.begin_step(StepKind::usual);
  impl_->graphs.run("step", impl_->work);
  impl_->graphs.end_step();
}

bool GraphedStep::is_recorded() const {
  return impl_->graphs.is_recorded();
}

}  // namespace lockstep
