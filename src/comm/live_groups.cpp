#include "comm/live_groups.h"

#include <algorithm>
#include <utility>

#include "comm/group_impl.h"

namespace lockstep {

void LiveGroups::add(std::shared_ptr<GroupImpl> group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

std::vector<std::shared_ptr<GroupImpl>> LiveGroups::copy() const {
  const std::lock_guard lock(mutex_);
  return groups_;
}

void LiveGroups::abort() {
  for (const auto& group : copy()) group->guard->abort();
}

void LiveGroups::leave() {
  std::vector<std::shared_ptr<GroupImpl>> groups;
  {
    const std::lock_guard lock(mutex_);
    groups.swap(groups_);
  }
  for (const auto& group : groups) group->leave();
}

void LiveGroups::revoke(std::uint64_t epoch) {
  {
    const std::lock_guard lock(mutex_);
    newest_ = std::max(newest_, epoch);
    if (newest_ <= epoch_) return;
  }
  changed_.notify_all();
  // The thread that hears of it also gives the signs of life; who uses the groups waits.
  for (const auto& group : copy()) group->guard->break_off();
}

void LiveGroups::enter(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
}

bool LiveGroups::all_work() const {
  return std::ranges::all_of(copy(), [](const auto& group) { return group->guard->working(); });
}

std::uint64_t LiveGroups::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}

bool LiveGroups::revoked() const {
  const std::lock_guard lock(mutex_);
  return newest_ > epoch_;
}

bool LiveGroups::await_revocation(std::chrono::milliseconds limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return newest_ > epoch_; });
}

}  // namespace lockstep
