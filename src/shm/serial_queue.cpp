#include "shm/serial_queue.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep {

struct SerialQueue::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;
  bool running = false;  // a task, on whichever thread
  bool stopping = false;
  std::thread thread;  // started with the first task

  void run_tasks() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return !running && (stopping || !tasks.empty()); });
      if (tasks.empty()) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      running = true;
      lock.unlock();
      task();
      task = nullptr;  // releases what it holds outside the lock
      lock.lock();
      running = false;
      changed.notify_all();
    }
  }
};

SerialQueue::SerialQueue() : state_(std::make_shared<State>()) {}

SerialQueue::~SerialQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (!state_->thread.joinable()) return;
  // A task may hold the last reference to whoever owns the queue.
  if (on_own_thread()) {
    state_->thread.detach();
  } else {
    state_->thread.join();
  }
}

bool SerialQueue::on_own_thread() const {
  return state_->thread.get_id() == std::this_thread::get_id();
}

void SerialQueue::post(Task task) {
  // Of its own: the task may end the queue before this function has returned.
  const std::shared_ptr<State> state = state_;
  const std::lock_guard lock(state->mutex);
  state->tasks.push_back(std::move(task));
  if (!state->thread.joinable()) {
    state->thread = std::thread([state] { state->run_tasks(); });
  }
  state->changed.notify_all();
}

void SerialQueue::run_here(const Task& task) {
  {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return !state_->running && state_->tasks.empty(); });
    state_->running = true;
  }
  task();
  {
    const std::lock_guard lock(state_->mutex);
    state_->running = false;
  }
  state_->changed.notify_all();
}

}  // namespace lockstep
