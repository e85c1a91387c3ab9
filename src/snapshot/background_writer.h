#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep {

/// A thread that does one job at a time, at low priority, for work beside training. The thread
/// starts with the first job and ends with the object, after its last job.
class BackgroundWriter {
 public:
  BackgroundWriter() = default;
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  /// Waits until the job before is done, then hands this one over. It must not throw.
  void start(std::function<void()> job);

  /// Returns when the thread has nothing to do.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // under mutex_
  bool busy_ = false;          // under mutex_
  bool ending_ = false;        // under mutex_
  std::thread thread_;
};

}  // namespace lockstep
