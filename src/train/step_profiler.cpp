#include "lockstep/step_profiler.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <set>

#include <c10/core/Device.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

}  // namespace

StepProfiler::StepProfiler(const StepProfilerOptions& options, c10::Device device)
    : options_(options), cuda_(device.is_cuda()) {
  if (options_.steps < 0 || options_.first_step < 0) {
    throw InvalidArgument(concat("StepProfiler: first_step is ", options_.first_step,
                                 " and steps is ", options_.steps, "; neither can be negative"));
  }
  if (options_.steps > 0 && options_.folder.empty()) {
    throw InvalidArgument("StepProfiler: steps are to be recorded, but folder is empty");
  }
}

StepProfiler::~StepProfiler() {
  try {
    finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep: the profile was not written: %s\n",
                 first_line(error.what()).c_str());
  }
}

void StepProfiler::before_step(std::int64_t step) {
  const bool wanted = step >= options_.first_step && step < options_.first_step + options_.steps;
  if (!wanted || recording_) return;
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (cuda_) activities.insert(ActivityType::CUDA);
  const ProfilerConfig config(ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  recording_ = true;
}

void StepProfiler::after_step(std::int64_t step) {
  if (step + 1 >= options_.first_step + options_.steps) finish();
}

void StepProfiler::finish() {
  if (!recording_) return;
  recording_ = false;
  const auto result = profiler::disableProfiler();
  std::filesystem::create_directories(options_.folder);
  const std::string path = concat(options_.folder, "/trace_rank_", options_.rank, ".json");
  result->save(path);
  written_ = path;
}

}  // namespace lockstep
