#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace lockstep {

/// Does numbered pieces of work ahead of the one who takes them, on worker threads, and hands them
/// over in order. Knows nothing of what the work is.
///
/// Without workers a piece is done when it is taken, in the caller. One thread takes; start(),
/// seek() and next() are called by it alone.
class Prefetcher {
 public:
  /// What a turn gave; null says that the sequence ends before this turn.
  using Result = std::shared_ptr<void>;
  /// Called on any worker, several at a time, but begun in the order of turns. When `stop` is
  /// requested nobody wants the result any more. What it throws, next() throws at its turn.
  using Work = std::function<Result(std::int64_t turn, std::stop_token stop)>;

  struct Options {
    int workers = 0;
    std::int64_t ahead = 1;                // turns that are done or being done beyond those taken
    std::chrono::milliseconds timeout{0};  // for next(); 0: none
    std::function<void(int worker)> thread_start = {};  // what it throws, every next() throws
  };
  explicit Prefetcher(Options options);

  /// Asks what is under way to stop, and waits for it.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Begins a sequence of turns [first, end). Forgets the one before; returns when none of its work
  /// is under way.
  void start(Work work, std::int64_t first, std::int64_t end);

  /// Goes on from another turn of the sequence. What is done ahead of it is kept.
  void seek(std::int64_t turn);

  /// The result of the next turn, or null at the end. Throws what the work threw (the turn counts
  /// as taken), and Timeout (it does not).
  Result next();

  bool started() const { return job_ != nullptr; }

  /// The turn that next() will give.
  std::int64_t cursor() const { return cursor_; }

 private:
  struct Job {
    Work work;
    std::stop_source stop;
  };
  struct Entry {
    bool done = false;
    Result result;
    std::exception_ptr error;
  };

  Result do_now();
  void run(int worker);
  std::int64_t limit() const;
  bool claim(std::int64_t& turn);
  bool wait_for_turn(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready);
  void store(std::int64_t turn, Entry entry);
  void end_before(std::int64_t turn);
  void stop_job();

  Options options_;
  std::mutex mutex_;
  std::condition_variable to_do_;
  std::condition_variable done_;
  std::shared_ptr<Job> job_;
  std::map<std::int64_t, Entry> entries_;  // done or under way
  std::int64_t cursor_ = 0;
  std::int64_t unclaimed_ = 0;  // no turn before it needs a worker
  std::int64_t end_ = 0;
  int busy_ = 0;
  int idle_ = 0;
  bool taker_waits_ = false;
  bool leaving_ = false;
  std::exception_ptr failed_start_;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
