#include "lockstep/rpc_future.h"

namespace lockstep::rpc::detail {

bool CallState::end(Payload answer, Task failure) {
  std::vector<Task> tasks;
  {
    const std::lock_guard lock(mutex_);
    if (done_) return false;
    done_ = true;
    answer_ = std::move(answer);
    failure_ = std::move(failure);
    tasks.swap(tasks_);
    changed_.notify_all();
  }
  for (Task& task : tasks) executor_(std::move(task));
  return true;
}

void CallState::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

bool CallState::wait_until(std::chrono::steady_clock::time_point time) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, time, [this] { return done_; });
}

bool CallState::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

const Payload& CallState::answer() const {
  wait();
  if (failure_) failure_();
  return answer_;
}

void CallState::after(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      tasks_.push_back(std::move(task));
      return;
    }
  }
  executor_(std::move(task));
}

}  // namespace lockstep::rpc::detail
