#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {

/// Samples that a running program makes (a simulation, a game, sensors), for a Loader to read.
///
/// Any thread pushes; when `capacity` samples wait to be read, push() blocks, so that the producer
/// does not run away from training. What was read cannot be read again: such a source is not
/// replayable.
template <typename Sample>
class PushSource {
 public:
  /// Throws InvalidArgument for a capacity of 0.
  explicit PushSource(std::size_t capacity) : capacity_(capacity) {
    if (capacity == 0) {
      throw InvalidArgument("PushSource: capacity is 0; no sample could ever be pushed");
    }
  }

  /// Waits for room. False when the source was closed: the sample was not taken.
  bool push(Sample sample) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return closed_ || samples_.size() < capacity_; });
    return add(std::move(sample), lock);
  }

  /// False when there is no room or the source was closed.
  bool try_push(Sample sample) {
    std::unique_lock lock(mutex_);
    if (samples_.size() >= capacity_) return false;
    return add(std::move(sample), lock);
  }

  /// No more samples will come. Those that wait are still delivered; pushes that wait return false.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    room_.notify_all();
    arrived_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

  /// Samples that wait to be read.
  std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return samples_.size();
  }

  /// The loader's side: waits for a sample. Nothing when the source is closed and empty, or when
  /// `stop` is requested.
  std::optional<Sample> next(std::stop_token stop) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait(lock, stop, [this] { return closed_ || !samples_.empty(); })) return {};
    if (samples_.empty()) return {};
    std::optional<Sample> sample(std::move(samples_.front()));
    samples_.pop_front();
    lock.unlock();
    room_.notify_one();
    return sample;
  }

 private:
  bool add(Sample&& sample, std::unique_lock<std::mutex>& lock) {
    if (closed_) return false;
    samples_.push_back(std::move(sample));
    lock.unlock();
    arrived_.notify_one();
    return true;
  }

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable room_;
  std::condition_variable_any arrived_;
  std::deque<Sample> samples_;
  bool closed_ = false;
};

}  // namespace lockstep
