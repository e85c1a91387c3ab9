#include "rpc/pending_calls.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep::rpc {
namespace {

Failure out_of_time(const PendingCall& call) {
  return {.kind = FailureKind::timeout,
          .detail = {},
          .message = concat("no answer within ", call.timeout.count(), " ms")};
}

}  // namespace

void fail_call(const PendingCall& call, const std::string& peer, const Failure& failure) {
  call.state->fail([failure, peer, what = concat("'", peer, "', ", call.what),
                    signature = call.signature] { throw_failure(failure, peer, what, signature); });
}

void PendingCalls::set_limit(std::size_t limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
  changed_.notify_all();
}

std::optional<std::uint64_t> PendingCalls::add(PendingCall call) {
  std::optional<Failure> failure;
  {
    std::unique_lock lock(mutex_);
    const bool room = changed_.wait_until(
        lock, call.deadline, [this] { return closed_ || calls_.size() + late_.size() < limit_; });
    if (room && !closed_) {
      const std::uint64_t number = next_++;
      calls_.emplace(number, std::move(call));
      return number;
    }
    failure = closed_;
  }
  fail(call, failure ? *failure : out_of_time(call));
  return std::nullopt;
}

bool PendingCalls::contains(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return calls_.contains(number);
}

std::optional<PendingCall> PendingCalls::take(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(number);
  if (found == calls_.end()) {
    if (late_.erase(number) > 0) changed_.notify_one();
    return std::nullopt;
  }
  PendingCall call = std::move(found->second);
  calls_.erase(found);
  changed_.notify_one();
  return call;
}

void PendingCalls::abandon(std::uint64_t number) {
  if (const auto call = take(number)) fail(*call, out_of_time(*call));
}

PendingCalls::Time PendingCalls::expire(Time now) {
  std::vector<PendingCall> late;
  Time next = Time::max();
  {
    const std::lock_guard lock(mutex_);
    for (auto each = calls_.begin(); each != calls_.end();) {
      if (each->second.deadline > now) {
        next = std::min(next, each->second.deadline);
        ++each;
        continue;
      }
      late_.insert(each->first);
      late.push_back(std::move(each->second));
      each = calls_.erase(each);
    }
  }
  for (const PendingCall& call : late) fail(call, out_of_time(call));
  return next;
}

void PendingCalls::fail_all(const Failure& failure) {
  std::map<std::uint64_t, PendingCall> calls;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) closed_ = failure;
    calls.swap(calls_);
    late_.clear();
    changed_.notify_all();
  }
  for (const auto& [number, call] : calls) fail(call, failure);
}

}  // namespace lockstep::rpc
