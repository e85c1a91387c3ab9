#include "data/prefetcher.h"

#include <algorithm>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {

Prefetcher::Prefetcher(Options options) : options_(std::move(options)) {
  LOCKSTEP_CHECK(options_.workers == 0 || options_.ahead > 0, "ahead ", options_.ahead);
  threads_.reserve(options_.workers);
}

Prefetcher::~Prefetcher() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    stop_job();
  }
  to_do_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Prefetcher::stop_job() {
  if (job_) job_->stop.request_stop();
}

void Prefetcher::start(Work work, std::int64_t first, std::int64_t end) {
  std::map<std::int64_t, Entry> forgotten;  // freed when the lock is not held
  {
    std::unique_lock lock(mutex_);
    stop_job();
    job_.reset();
    forgotten.swap(entries_);
    taker_waits_ = true;
    done_.wait(lock, [this] { return busy_ == 0; });
    taker_waits_ = false;
    job_ = std::make_shared<Job>(Job{.work = std::move(work), .stop = {}});
    cursor_ = unclaimed_ = first;
    end_ = std::max(first, end);
  }
  to_do_.notify_all();
  while (std::ssize(threads_) < options_.workers) {
    threads_.emplace_back(&Prefetcher::run, this, static_cast<int>(threads_.size()));
  }
}

void Prefetcher::seek(std::int64_t turn) {
  std::map<std::int64_t, Entry> passed;
  {
    const std::lock_guard lock(mutex_);
    cursor_ = unclaimed_ = std::min(turn, end_);
    for (auto entry = entries_.begin(); entry != entries_.end() && entry->first < cursor_;) {
      passed.insert(entries_.extract(entry++));
    }
  }
  to_do_.notify_all();
}

std::int64_t Prefetcher::limit() const {
  return end_ - cursor_ > options_.ahead ? cursor_ + options_.ahead : end_;
}

// Results beyond `ahead` are there after seek() went back; nothing more is begun until they are
// used.
bool Prefetcher::claim(std::int64_t& turn) {
  if (!job_) return false;
  const std::int64_t limit = this->limit();
  unclaimed_ = std::max(unclaimed_, cursor_);  // results that were kept have been taken meanwhile
  while (unclaimed_ < limit && entries_.contains(unclaimed_)) ++unclaimed_;
  if (unclaimed_ >= limit) return false;
  turn = unclaimed_++;
  entries_.emplace(turn, Entry{});
  return true;
}

void Prefetcher::run(int worker) {
  std::unique_lock lock(mutex_);
  if (options_.thread_start) {
    lock.unlock();
    std::exception_ptr error;
    try {
      options_.thread_start(worker);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      failed_start_ = error;
      done_.notify_all();
      return;
    }
  }
  while (true) {
    std::int64_t turn = 0;
    ++idle_;
    to_do_.wait(lock, [&] { return leaving_ || claim(turn); });
    --idle_;
    if (leaving_) return;
    std::shared_ptr<Job> job = job_;
    ++busy_;
    lock.unlock();
    Entry entry{.done = true, .result = nullptr, .error = nullptr};
    try {
      entry.result = job->work(turn, job->stop.get_token());
    } catch (...) {
      entry.error = std::current_exception();
    }
    lock.lock();
    if (job == job_) store(turn, std::move(entry));
    --busy_;
    const bool wake_taker = taker_waits_ && (turn == cursor_ || cursor_ >= end_ || !job_);
    lock.unlock();
    if (wake_taker) done_.notify_one();
    entry = {};
    job.reset();
    lock.lock();
  }
}

void Prefetcher::store(std::int64_t turn, Entry entry) {
  if (!entry.result && !entry.error) {
    end_before(turn);
    return;
  }
  // No entry: seek() went past it meanwhile. One that is done: seek() went back and another worker
  // was faster.
  const auto place = entries_.find(turn);
  if (place != entries_.end() && !place->second.done) place->second = std::move(entry);
}

void Prefetcher::end_before(std::int64_t turn) {
  end_ = std::min(end_, turn);
  entries_.erase(entries_.lower_bound(end_), entries_.end());
}

bool Prefetcher::wait_for_turn(std::unique_lock<std::mutex>& lock,
                               const std::function<bool()>& ready) {
  to_do_.notify_all();
  taker_waits_ = true;
  bool there = true;
  if (options_.timeout.count() == 0) {
    done_.wait(lock, ready);
  } else {
    there = done_.wait_for(lock, options_.timeout, ready);
  }
  taker_waits_ = false;
  return there;
}

Prefetcher::Result Prefetcher::next() {
  if (options_.workers == 0) return do_now();
  std::unique_lock lock(mutex_);
  auto entry = entries_.end();
  const auto ready = [&] {
    if (failed_start_ || cursor_ >= end_) return true;
    entry = entries_.find(cursor_);
    return entry != entries_.end() && entry->second.done;
  };
  if (!ready() && !wait_for_turn(lock, ready)) {
    throw Timeout(concat("nothing within ", options_.timeout.count(), " ms"));
  }
  if (failed_start_) std::rethrow_exception(failed_start_);
  if (cursor_ >= end_) return nullptr;
  const Entry taken = std::move(entry->second);
  entries_.erase(entry);
  ++cursor_;
  // Waking a worker for every turn would cost more than small turns do: it is woken when half of
  // what may be ahead is missing, and wait_for_turn() sees to the rest.
  const bool wake_worker = idle_ > 0 && 2 * (limit() - unclaimed_) >= options_.ahead;
  lock.unlock();
  if (wake_worker) to_do_.notify_one();
  if (taken.error) std::rethrow_exception(taken.error);
  return taken.result;
}

Prefetcher::Result Prefetcher::do_now() {
  if (!job_ || cursor_ >= end_) return nullptr;
  // A turn whose work throws counts as taken, as it does with workers.
  const std::int64_t turn = cursor_++;
  Result result = job_->work(turn, job_->stop.get_token());
  if (!result) cursor_ = end_ = turn;
  return result;
}

}  // namespace lockstep
