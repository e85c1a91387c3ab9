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
  std::vector<c10::intrusive_ptr<c10d::Work>> parts;  // most operations have one
  /// What remains to be done once the backend has finished: once, by whoever waits first.
  std::function<void()> finish;
  std::mutex mutex;

  void wait() {
    for (auto& part : parts) part->wait();
    std::lock_guard lock(mutex);
    if (finish) std::exchange(finish, nullptr)();
  }
};

inline Work make_work(std::vector<c10::intrusive_ptr<c10d::Work>> parts, bool async_op,
                      std::function<void()> finish = nullptr) {
  auto impl = std::make_shared<Work::Impl>();
  impl->parts = std::move(parts);
  impl->finish = std::move(finish);
  if (async_op) return Work(std::move(impl));
  impl->wait();
  return Work();
}

inline Work make_work(c10::intrusive_ptr<c10d::Work> part, bool async_op,
                      std::function<void()> finish = nullptr) {
  return make_work(std::vector{std::move(part)}, async_op, std::move(finish));
}

}  // namespace lockstep
