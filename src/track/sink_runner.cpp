#include "track/sink_runner.h"

#include <algorithm>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLongestRetry{60'000};

}  // namespace

SinkRunner::SinkRunner(std::unique_ptr<Sink> sink, Options options)
    : sink_(std::move(sink)), options_(std::move(options)), wait_(options_.retry_after) {}

bool SinkRunner::ready(Clock::time_point now) {
  if (open_) return true;
  if (given_up_ || now < next_try_) return false;
  sink_->open();
  open_ = true;
  return true;
}

void SinkRunner::write(const std::vector<TrackRecord>& records, Clock::time_point now) {
  try {
    if (!ready(now)) {
      lost_ += std::ssize(records);
      return;
    }
    for (const TrackRecord& record : records) sink_->write(record);
    sink_->flush();
  } catch (const InvalidArgument& error) {  // another try would end as this one
    given_up_ = true;
    fail(error.what(), records.size(), now);
    return;
  } catch (const std::exception& error) {
    fail(error.what(), records.size(), now);
    return;
  }
  wait_ = options_.retry_after;
  if (lost_ > 0 && told_failure_ && !std::exchange(told_recovery_, true)) {
    options_.report(concat("lockstep: tracking (", sink_->name(), "): works again; ", lost_,
                           " records are missing there"));
  }
}

void SinkRunner::fail(const std::string& why, std::size_t records, Clock::time_point now) {
  open_ = false;
  lost_ += static_cast<std::int64_t>(records);
  next_try_ = now + wait_;
  wait_ = std::min(2 * wait_, kLongestRetry);
  if (std::exchange(told_failure_, true)) return;
  options_.report(concat("lockstep: tracking (", sink_->name(), "): ", first_line(why),
                         "; the run goes on without",
                         given_up_ ? "" : ", and this is tried again from time to time"));
}

void SinkRunner::finish(bool succeeded) {
  try {
    if (ready(Clock::time_point::max())) sink_->finish(succeeded);
  } catch (const std::exception& error) {
    fail(error.what(), 0, Clock::now());
  }
}

}  // namespace lockstep
