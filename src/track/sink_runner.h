#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "track/sink.h"

namespace lockstep {

/// Keeps a sink going: one that fails is opened again after a while, and what it has missed
/// meanwhile is counted. Says so once when it fails, and once when it works again.
class SinkRunner {
 public:
  struct Options {
    std::chrono::milliseconds retry_after{1'000};
    std::function<void(const std::string& line)> report;
  };
  using Clock = std::chrono::steady_clock;

  SinkRunner(std::unique_ptr<Sink> sink, Options options);

  void write(const std::vector<TrackRecord>& records, Clock::time_point now);
  void finish(bool succeeded);

  std::int64_t lost() const { return lost_; }

 private:
  bool ready(Clock::time_point now);
  void fail(const std::string& why, std::size_t records, Clock::time_point now);

  std::unique_ptr<Sink> sink_;
  Options options_;
  bool open_ = false;
  bool given_up_ = false;
  bool told_failure_ = false, told_recovery_ = false;
  Clock::time_point next_try_ = {};
  std::chrono::milliseconds wait_;
  std::int64_t lost_ = 0;
};

}  // namespace lockstep
