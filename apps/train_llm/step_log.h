#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "lockstep/callback.h"
#include "lockstep/loader_base.h"
#include "lockstep/world.h"

namespace train_llm {

struct StepLogOptions {
  std::int64_t tokens_per_slot = 0;  // that a step computes
  std::int64_t total_steps = 0;      // 0: not known
  double flops_per_token = 0;
  std::optional<double> peak_flops = std::nullopt;  // of this rank's device
};

/// Says how the run goes: a line on standard output for each report, and more numbers for the
/// metrics of each rank.
class StepLog : public lockstep::Callback {
 public:
  /// The world and the loader must outlive it.
  StepLog(const lockstep::World& world, const lockstep::LoaderBase& data,
          const StepLogOptions& options);

  std::map<std::string, double> log_values(const lockstep::StepReport& report) override;
  void on_tracker(lockstep::Tracker* tracker) override { tracker_ = tracker; }
  void on_step(const lockstep::StepReport& report) override;
  std::map<std::string, double> evaluation_values(
      const std::map<std::string, double>& metrics) override;
  void on_evaluation(std::int64_t step, const std::map<std::string, double>& metrics) override;

 private:
  void say(const std::string& line) const;

  const lockstep::World& world_;
  const lockstep::LoaderBase& data_;
  StepLogOptions options_;
  lockstep::Tracker* tracker_ = nullptr;
  std::map<std::string, double> values_;  // of the last report
};

}  // namespace train_llm
