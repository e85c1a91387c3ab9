#include "rpc/handler_pool.h"

#include <algorithm>
#include <utility>

namespace lockstep::rpc {

HandlerPool::HandlerPool(int threads) {
  for (int number = 0; number < threads; ++number) {
    threads_.emplace_back([this] { work(); });
    ids_.push_back(threads_.back().get_id());
  }
}

HandlerPool::~HandlerPool() {
  stop();
}

bool HandlerPool::is_own_thread() const {
  return std::ranges::find(ids_, std::this_thread::get_id()) != ids_.end();
}

void HandlerPool::run(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      tasks_.push_back(std::move(task));
      changed_.notify_one();
      return;
    }
  }
  task();
}

void HandlerPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds may be a last reference
    lock.lock();
  }
}

void HandlerPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void HandlerPool::run_on(const std::shared_ptr<Strand>& strand, Task task) {
  {
    const std::lock_guard lock(strand->mutex_);
    strand->tasks_.push_back(std::move(task));
    if (strand->busy_) return;
    strand->busy_ = true;
  }
  run([this, strand] { run_next(strand); });
}

// One at a time, so that a strand with many tasks does not keep a thread from the others.
void HandlerPool::run_next(const std::shared_ptr<Strand>& strand) {
  Task task;
  {
    const std::lock_guard lock(strand->mutex_);
    task = std::move(strand->tasks_.front());
    strand->tasks_.pop_front();
  }
  task();
  task = nullptr;
  {
    const std::lock_guard lock(strand->mutex_);
    strand->busy_ = !strand->tasks_.empty();
    if (!strand->busy_) return;
  }
  run([this, strand] { run_next(strand); });
}

}  // namespace lockstep::rpc
