#include "lockstep/tracker.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/error.h"
#include "track/background_thread.h"
#include "track/jsonl_sink.h"
#include "track/sink_runner.h"
#include "track/tensorboard_sink.h"
#include "track/wandb_sink.h"

namespace lockstep {

namespace {

// Waking the thread for each record would let it take the processor away from the step that has
// just told one: on a machine with more work than cores that costs more than all the writing.
constexpr std::chrono::milliseconds kWriteEvery{50};

}  // namespace

double seconds_since_1970() {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return now.count();
}

/// The queue, and the thread that empties it. The thread holds a reference of its own: where a disk
/// does not answer it is left behind with it.
class Tracker::Impl {
 public:
  explicit Impl(TrackerOptions options);

  static void start(const std::shared_ptr<Impl>& impl);
  void push(TrackRecord record);
  bool wait_until_written();
  void end(std::optional<bool> succeeded);

  const Continuation& continuation() const { return start_; }
  std::uint64_t dropped() const {
    const std::lock_guard lock(mutex_);
    return dropped_;
  }

 private:
  void make_sinks();
  void run();
  void say(const std::string& line) const;

  const TrackerOptions options_;
  Continuation start_;
  std::vector<SinkRunner> sinks_;  // of the thread

  mutable std::mutex mutex_;
  std::condition_variable wake_, written_;
  std::vector<TrackRecord> queue_;
  std::uint64_t pushed_ = 0;  // records that were taken
  std::uint64_t done_ = 0;    // of them, those that were given to the sinks
  std::uint64_t dropped_ = 0;
  bool told_drops_ = false;
  std::int64_t next_row_ = 0;
  bool hurries_ = false;  // somebody waits, or the queue fills
  bool ending_ = false, ended_ = false;
  std::optional<bool> succeeded_;
  std::atomic<bool> abandoned_ = false;  // the thread
  std::thread thread_;
};

Tracker::Impl::Impl(TrackerOptions options) : options_(std::move(options)) {
  make_sinks();
  next_row_ = start_.kept;
}

void Tracker::Impl::say(const std::string& line) const {
  if (abandoned_) return;  // who listened may be gone
  if (options_.report) {
    options_.report(line);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

void Tracker::Impl::make_sinks() {
  const auto add = [this](std::unique_ptr<Sink> sink) {
    sinks_.emplace_back(std::move(sink),
                        SinkRunner::Options{.retry_after = options_.retry_after,
                                            .report = [this](const auto& line) { say(line); }});
  };
  const TrackingOptions& tracking = options_.tracking;
  auto lines = std::make_unique<JsonlSink>(options_.directory, options_.rank, tracking.config);
  if (options_.place) {
    try {
      start_ = lines->resume(*options_.place);
    } catch (const std::exception& error) {
      say(concat("lockstep: tracking: what the run has written before is left as it is: ",
                 first_line(error.what())));
      start_ = {.resumed = true, .place = *options_.place, .kept = options_.place->lines};
    }
  }
  add(std::move(lines));
  if (tracking.tensorboard) {
    add(std::make_unique<TensorboardSink>(options_.directory, options_.rank, tracking.config,
                                          start_));
  }
  try {
    if (auto run = wandb_run(options_, wandb_environment())) {
      add(std::make_unique<WandbSink>(std::move(*run), tracking.config, start_));
    }
  } catch (const InvalidArgument& error) {
    say(concat("lockstep: tracking (W&B): ", error.what(), "; the run goes on without"));
  }
}

void Tracker::Impl::start(const std::shared_ptr<Impl>& impl) {
  impl->thread_ = std::thread([impl] { impl->run(); });
}

void Tracker::Impl::push(TrackRecord record) {
  record.time = seconds_since_1970();
  bool wake = false, tell = false;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    if (queue_.size() >= options_.queue_limit) {
      ++dropped_;
      tell = !std::exchange(told_drops_, true);
    } else {
      if (record.kind == TrackRecord::Kind::metrics) record.row = next_row_++;
      wake = queue_.size() == options_.queue_limit / 2;
      hurries_ = hurries_ || wake;
      queue_.push_back(std::move(record));
      ++pushed_;
    }
  }
  if (wake) wake_.notify_one();
  if (tell) {
    say(concat("lockstep: tracking: the disk does not keep up; beyond ", options_.queue_limit,
               " records that wait, more are dropped"));
  }
}

void Tracker::Impl::run() {
  work_in_background();
  std::vector<TrackRecord> batch;
  std::uint64_t told_dropped = 0;
  sinks_.front().write({}, SinkRunner::Clock::now());  // makes the files
  for (;;) {
    bool last = false;
    std::uint64_t dropped = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, kWriteEvery, [this] { return hurries_ || ending_; });
      hurries_ = false;
      if (queue_.empty() && !ending_) continue;
      batch.swap(queue_);
      dropped = dropped_;
      last = ending_ && batch.empty();
    }
    if (last) break;
    if (dropped > told_dropped) {
      batch.push_back({.kind = TrackRecord::Kind::event,
                       .time = seconds_since_1970(),
                       .name = "records_dropped",
                       .values = {{"count", dropped}}});
      told_dropped = dropped;
    }
    const std::size_t own = batch.size() - (batch.back().name == "records_dropped" ? 1 : 0);
    const auto now = SinkRunner::Clock::now();
    for (SinkRunner& sink : sinks_) sink.write(batch, now);
    {
      const std::lock_guard lock(mutex_);
      done_ += own;
    }
    written_.notify_all();
    batch.clear();
  }
  if (succeeded_) {
    for (SinkRunner& sink : sinks_) sink.finish(*succeeded_);
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  written_.notify_all();
}

bool Tracker::Impl::wait_until_written() {
  std::unique_lock lock(mutex_);
  const std::uint64_t goal = pushed_;
  hurries_ = true;
  wake_.notify_one();
  return written_.wait_for(lock, options_.patience, [&] { return done_ >= goal || ended_; });
}

void Tracker::Impl::end(std::optional<bool> succeeded) {
  bool in_time = false;
  std::uint64_t left = 0;
  {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) return;
    succeeded_ = succeeded;
    ending_ = true;
    wake_.notify_one();
    in_time = written_.wait_for(lock, options_.patience, [this] { return ended_; });
    left = pushed_ - done_;
  }
  if (in_time) return thread_.join();
  say(concat("lockstep: tracking: the disk does not answer; the last ", left,
             " records are not written"));
  abandoned_ = true;
  thread_.detach();
}

Tracker::Tracker(TrackerOptions options) : impl_(std::make_shared<Impl>(std::move(options))) {
  Impl::start(impl_);
}

Tracker::~Tracker() {
  impl_->end(std::nullopt);
}

void Tracker::metrics(std::int64_t step, nlohmann::json values) {
  impl_->push({.kind = TrackRecord::Kind::metrics, .step = step, .values = std::move(values)});
}

void Tracker::event(std::string_view name, nlohmann::json fields) {
  impl_->push(
      {.kind = TrackRecord::Kind::event, .name = std::string(name), .values = std::move(fields)});
}

void Tracker::text(std::int64_t step, std::string_view name, std::string_view text) {
  impl_->push({.kind = TrackRecord::Kind::text,
               .step = step,
               .name = std::string(name),
               .text = std::string(text)});
}

void Tracker::histogram(std::int64_t step, std::string_view name, const Histogram& histogram) {
  impl_->push({.kind = TrackRecord::Kind::histogram,
               .step = step,
               .name = std::string(name),
               .values = {{"edges", histogram.edges},
                          {"counts", histogram.counts},
                          {"min", histogram.min},
                          {"max", histogram.max},
                          {"sum", histogram.sum},
                          {"sum_squares", histogram.sum_squares}}});
}

void Tracker::system(nlohmann::json values) {
  impl_->push({.kind = TrackRecord::Kind::system, .values = std::move(values)});
}

void Tracker::console(std::string_view text) {
  impl_->push({.kind = TrackRecord::Kind::console, .text = std::string(text)});
}

void Tracker::file(std::string_view path, std::string_view name) {
  impl_->push(
      {.kind = TrackRecord::Kind::file, .name = std::string(name), .text = std::string(path)});
}

bool Tracker::flush() {
  return impl_->wait_until_written();
}

void Tracker::finish(bool succeeded) {
  impl_->end(succeeded);
}

std::int64_t Tracker::kept() const {
  return impl_->continuation().kept;
}

const std::vector<MetricLine>& Tracker::tail() const {
  return impl_->continuation().tail;
}

std::uint64_t Tracker::dropped() const {
  return impl_->dropped();
}

}  // namespace lockstep
