#pragma once

#include <cstdint>
#include <string>

namespace c10 {
struct Device;
}

namespace lockstep {

struct StepProfilerOptions {
  std::int64_t first_step = 0;  // counted from 0
  std::int64_t steps = 0;       // 0: no profile
  std::string folder = {};      // for trace_rank_R.json
  int rank = 0;
};

/// Writes a trace of some steps, for chrome://tracing or ui.perfetto.dev: what forward and backward
/// call, and on the reduction's own thread the buckets of gradients as they are reduced.
///
/// At most one in a process at a time; one thread.
class StepProfiler {
 public:
  /// Throws InvalidArgument for negative numbers, or steps without a folder.
  StepProfiler(const StepProfilerOptions& options, c10::Device device);
  StepProfiler(const StepProfiler&) = delete;
  StepProfiler& operator=(const StepProfiler&) = delete;
  /// Writes what has been recorded so far.
  ~StepProfiler();

  void before_step(std::int64_t step);
  void after_step(std::int64_t step);

  /// Where the trace is; empty before it is written.
  const std::string& written() const { return written_; }

 private:
  void finish();

  StepProfilerOptions options_;
  bool cuda_;
  bool recording_ = false;
  std::string written_;
};

}  // namespace lockstep
