#include "comm/shm_channel.h"

#include <utility>

#include "comm/group_team.h"

namespace lockstep {

ShmChannel::ShmChannel() = default;
ShmChannel::~ShmChannel() = default;

std::int64_t ShmChannel::take_ticket() {
  std::lock_guard lock(mutex_);
  return tickets_++;
}

ShmChannel::Turn::Turn(ShmChannel& channel, std::int64_t ticket) : channel_(channel) {
  std::unique_lock lock(channel_.mutex_);
  channel_.next_.wait(lock, [&] { return channel_.turn_ == ticket; });
}

void ShmChannel::Turn::end() {
  if (std::exchange(ended_, true)) return;
  {
    std::lock_guard lock(channel_.mutex_);
    ++channel_.turn_;
  }
  channel_.next_.notify_all();
}

GroupTeam* ShmChannel::Turn::team(const std::function<std::unique_ptr<GroupTeam>()>& form) {
  // Only whoever has the turn changes these two.
  if (!channel_.formed_) {
    auto made = form();
    std::lock_guard lock(channel_.mutex_);
    channel_.formed_ = true;
    channel_.team_ = std::move(made);
    if (channel_.poisoned_ && channel_.team_) channel_.team_->poison();
  }
  return channel_.team_.get();
}

void ShmChannel::poison() {
  std::lock_guard lock(mutex_);
  poisoned_ = true;
  if (team_) team_->poison();
  for (const auto& team : others_) team->poison();
}

void ShmChannel::also_poison(std::shared_ptr<GroupTeam> team) {
  std::lock_guard lock(mutex_);
  if (poisoned_) team->poison();
  others_.push_back(std::move(team));
}

bool ShmChannel::in_use() {
  std::lock_guard lock(mutex_);
  return team_ != nullptr;
}

}  // namespace lockstep
