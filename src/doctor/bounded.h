#pragma once

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace lockstep {

/// What the function returns, or std::nullopt if that takes longer than the limit: a file system or
/// a resolver that hangs must not take the doctor with it. The thread that waits is then left
/// behind, so the function must own all that it uses, and must not throw.
template <typename Function>
auto run_bounded(std::chrono::milliseconds limit, Function function)
    -> std::optional<decltype(function())> {
  struct State {
    std::mutex mutex;
    std::condition_variable done;
    std::optional<decltype(function())> result;
  };
  const auto state = std::make_shared<State>();
  sigset_t all, before;  // signals are for the threads that expect them
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state, function = std::move(function)]() mutable {
    auto result = function();
    const std::lock_guard lock(state->mutex);
    state->result = std::move(result);
    state->done.notify_all();
  }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  std::unique_lock lock(state->mutex);
  state->done.wait_for(lock, limit, [&] { return state->result.has_value(); });
  return std::move(state->result);
}

}  // namespace lockstep
