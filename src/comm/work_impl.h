#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/process_group.h"

namespace lockstep {

class Work::Impl {
 public:
  c10::intrusive_ptr<c10d::Work> native;
  /// What remains to be done once the backend has finished: once, by whoever waits first.
  std::function<void()> finish;
  std::mutex mutex;

  void wait() {
    native->wait();
    std::lock_guard lock(mutex);
    if (finish) std::exchange(finish, nullptr)();
  }
};

inline Work make_work(c10::intrusive_ptr<c10d::Work> native, bool async_op,
                      std::function<void()> finish = nullptr) {
  auto impl = std::make_shared<Work::Impl>();
  impl->native = std::move(native);
  impl->finish = std::move(finish);
  if (async_op) return Work(std::move(impl));
  impl->wait();
  return Work();
}

}  // namespace lockstep
