#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/rpc_codec.h"

namespace lockstep::rpc {
namespace detail {

using Task = std::function<void()>;

/// Whether a call has ended, and how. Thread-safe.
class CallState {
 public:
  /// `executor` runs what comes after the call.
  explicit CallState(std::function<void(Task)> executor) : executor_(std::move(executor)) {}

  /// The first of these counts. False for later ones.
  bool finish(Payload answer) { return end(std::move(answer), nullptr); }
  /// `failure` throws, for each who asks a new exception: threads must not share one.
  bool fail(Task failure) { return end({}, std::move(failure)); }

  void wait() const;
  bool wait_until(std::chrono::steady_clock::time_point time) const;
  bool done() const;
  /// Waits; throws what the call failed with. The answer stays as it is from then on.
  const Payload& answer() const;
  /// What throws, of a call that has ended; empty if it was answered.
  const Task& failure() const { return failure_; }
  /// Runs the task once the call has ended, at once if it has.
  void after(Task task);
  const std::function<void(Task)>& executor() const { return executor_; }

 private:
  bool end(Payload answer, Task failure);

  const std::function<void(Task)> executor_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  Payload answer_;
  Task failure_;
  std::vector<Task> tasks_;
};

}  // namespace detail

/// The answer to a call, once it is there. Copies are the same answer. Thread-safe.
template <typename Result>
class Future {
 public:
  /// Made by Agent::call() and then().
  Future(std::shared_ptr<detail::CallState> state, std::function<Result()> value)
      : state_(std::move(state)), value_(std::move(value)) {}

  /// Waits. Throws the CallError that the call failed with, or what the function given to then()
  /// threw. May be called again: tensors of both results share their memory.
  Result get() const {
    state_->answer();
    return value_();
  }

  void wait() const { state_->wait(); }

  /// Whether the call has ended, well or not, within this time.
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> time) const {
    return state_->wait_until(std::chrono::steady_clock::now() + time);
  }
  bool done() const { return state_->done(); }

  /// Gives the result to `function` on one of the agent's threads, as soon as it is there. A
  /// failure passes it by. The threads are those that functions are served on: do not block them
  /// for long.
  template <typename Function>
  auto then(Function function) const {
    using Next = std::invoke_result_t<Function, Result>;
    auto next = std::make_shared<detail::CallState>(state_->executor());
    if constexpr (std::is_void_v<Next>) {
      state_->after([state = state_, value = value_, next, function = std::move(function)] {
        run(*state, *next, [&] { function(value()); });
      });
      return Future<void>(next, [] {});
    } else {
      auto kept = std::make_shared<std::optional<Next>>();
      state_->after([state = state_, value = value_, next, kept, function = std::move(function)] {
        run(*state, *next, [&] { kept->emplace(function(value())); });
      });
      return Future<Next>(next, [kept] { return **kept; });
    }
  }

 private:
  template <typename Body>
  static void run(const detail::CallState& before, detail::CallState& next, Body body) {
    if (before.failure()) {
      next.fail(before.failure());
      return;
    }
    try {
      body();
    } catch (...) {
      next.fail([error = std::current_exception()] { std::rethrow_exception(error); });
      return;
    }
    next.finish({});
  }

  std::shared_ptr<detail::CallState> state_;
  std::function<Result()> value_;
};

/// Of a function that returns nothing.
template <>
class Future<void> {
 public:
  Future(std::shared_ptr<detail::CallState> state, std::function<void()>)
      : state_(std::move(state)) {}

  void get() const { state_->answer(); }
  void wait() const { state_->wait(); }
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> time) const {
    return state_->wait_until(std::chrono::steady_clock::now() + time);
  }
  bool done() const { return state_->done(); }

 private:
  std::shared_ptr<detail::CallState> state_;
};

}  // namespace lockstep::rpc
