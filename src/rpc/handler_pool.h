#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::rpc {

/// Threads that run what others have called. Thread-safe.
class HandlerPool : public std::enable_shared_from_this<HandlerPool> {
 public:
  using Task = std::function<void()>;

  /// Tasks that run one after another, in the order in which they came.
  class Strand {
   private:
    friend class HandlerPool;
    std::mutex mutex_;
    std::deque<Task> tasks_;
    bool busy_ = false;
  };

  explicit HandlerPool(int threads);
  ~HandlerPool();

  /// Tasks throw nothing. After stop() they run at once, on the calling thread.
  void run(Task task);
  void run_on(const std::shared_ptr<Strand>& strand, Task task);

  /// Waits for all that were given to it. Not from one of its own threads.
  void stop();
  bool is_own_thread() const;

 private:
  void work();
  void run_next(const std::shared_ptr<Strand>& strand);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
  std::vector<std::thread::id> ids_;
};

}  // namespace lockstep::rpc
