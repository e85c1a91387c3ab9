#include "comm/shm_channel.h"

#include <utility>

#include "comm/shm_exchange.h"

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

ShmExchange* ShmChannel::Turn::exchange(const std::function<std::unique_ptr<ShmExchange>()>& form) {
  // Only whoever has the turn changes these two.
  if (!channel_.formed_) {
    auto made = form();
    std::lock_guard lock(channel_.mutex_);
    channel_.formed_ = true;
    channel_.exchange_ = std::move(made);
    if (channel_.poisoned_ && channel_.exchange_) channel_.exchange_->poison();
  }
  return channel_.exchange_.get();
}

void ShmChannel::poison() {
  std::lock_guard lock(mutex_);
  poisoned_ = true;
  if (exchange_) exchange_->poison();
}

bool ShmChannel::in_use() {
  std::lock_guard lock(mutex_);
  return exchange_ != nullptr;
}

}  // namespace lockstep
