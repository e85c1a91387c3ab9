#include "shm/mail.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "lockstep/error.h"
#include "shm/bell.h"
#include "shm/mail_message.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kRingBytes = 256 << 10;
constexpr std::size_t kSmallestRing = 1 << 10;
constexpr std::size_t kLargestMail = 64 << 20;
constexpr auto kLongestMailSpin = 50us;
constexpr auto kMailSleep = 10ms;  // how soon the death of a peer is noticed

std::size_t ring_bytes_for(int ranks) {
  const auto pairs = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  return std::clamp(kLargestMail / pairs / 64 * 64, kSmallestRing, kRingBytes);
}

// What a rank has there beside its rings.
struct alignas(64) MailPlace {
  Bell bell;
  alignas(64) std::atomic<std::uint32_t> left;
};

std::chrono::nanoseconds longest_mail_spin(int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return 0ns;
  return CPU_COUNT(&cores) >= ranks ? kLongestMailSpin : 0ns;
}

// Memory that is not to be had is told here, and not by a signal when it is written to.
void reserve_ring(const MailRing& ring, int peer) {
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(ring.memory()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(ring.memory()) + ring.memory_bytes();
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE) == 0) return;
  if (errno == EINVAL) return;  // a kernel before 5.14
  throw Error(concat("send: no memory (", ring.memory_bytes(), " bytes) for messages to rank ",
                     peer, " of this machine; LOCKSTEP_SHM=0 sends over TCP"));
#endif
}

}  // namespace

std::size_t ShmMail::bytes_needed(int ranks) {
  const auto count = static_cast<std::size_t>(ranks);
  return count * sizeof(MailPlace) + count * count * ring_bytes_for(ranks);
}

ShmMail::ShmMail(std::shared_ptr<const SharedSegment> segment, std::size_t offset, Options options)
    : segment_(std::move(segment)),
      memory_(segment_->data() + offset),
      options_(std::move(options)),
      outboxes_(static_cast<std::size_t>(options_.size)),
      inboxes_(static_cast<std::size_t>(options_.size)),
      reserved_(static_cast<std::size_t>(options_.size)),
      spin_(longest_mail_spin(options_.size)) {
  LOCKSTEP_CHECK(segment_->bytes() >= offset + bytes_needed(options_.size), segment_->bytes());
  const auto size = static_cast<std::size_t>(options_.size);
  const std::size_t bytes = ring_bytes_for(options_.size);
  const auto ring = [&](std::size_t from, std::size_t to) {
    return MailRing(memory_ + size * sizeof(MailPlace) + (from * size + to) * bytes, bytes);
  };
  const auto rank = static_cast<std::size_t>(options_.rank);
  for (std::size_t peer = 0; peer < size; ++peer) {
    out_.push_back(ring(rank, peer));
    in_.push_back(ring(peer, rank));
  }
}

ShmMail::~ShmMail() {
  leave();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  bell_of(options_.rank).ring();
  if (thread_.joinable()) thread_.join();
}

Bell& ShmMail::bell_of(int rank) const {
  return reinterpret_cast<MailPlace*>(memory_)[rank].bell;
}

std::atomic<std::uint32_t>& ShmMail::left(int rank) const {
  return reinterpret_cast<MailPlace*>(memory_)[rank].left;
}

bool ShmMail::is_gone(int peer) const {
  return left(peer).load(std::memory_order_seq_cst) != 0 ||
         (options_.peer_ended && options_.peer_ended(peer));
}

void ShmMail::leave() {
  left(options_.rank).store(1, std::memory_order_seq_cst);
  for (int rank = 0; rank < options_.size; ++rank) bell_of(rank).ring();
  const std::lock_guard lock(mutex_);
  for (const auto& message : all_pending()) fail(message, "Connection closed by peer (left)");
  changed_.notify_all();
}

ShmMail::MessagePtr ShmMail::send(int peer, Content content) {
  auto message = std::make_shared<Message>(peer, /*sends=*/true, std::move(content));
  const std::lock_guard lock(mutex_);
  if (!reserved_[static_cast<std::size_t>(peer)]) reserve_ring(ring_to(peer), peer);
  reserved_[static_cast<std::size_t>(peer)] = true;
  start(message);
  return message;
}

ShmMail::MessagePtr ShmMail::receive(int peer, Content content) {
  auto message = std::make_shared<Message>(peer, /*sends=*/false, std::move(content));
  const std::lock_guard lock(mutex_);
  start(message);
  return message;
}

void ShmMail::start(const MessagePtr& message) {
  ++pending_;
  if (left(options_.rank).load() != 0) return fail(message, "Connection closed by peer (left)");
  if (message->sends) {
    if (is_gone(message->peer)) return fail(message, "Connection closed by peer (it has left)");
    outboxes_[static_cast<std::size_t>(message->peer)].push_back(message);
  } else if (take_kept(message)) {
    return;
  } else {
    receives_.push_back(message);
  }
  make_progress();
  if (message->ended) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run_thread(); });
  changed_.notify_all();
}

bool ShmMail::has_ended(const MessagePtr& message) {
  const std::lock_guard lock(mutex_);
  if (!message->ended) make_progress();
  return message->ended;
}

bool ShmMail::has_failed(const MessagePtr& message) {
  const std::lock_guard lock(mutex_);
  return message->ended && message->error;
}

int ShmMail::source_of(const MessagePtr& message) {
  const std::lock_guard lock(mutex_);
  return message->peer;
}

void ShmMail::wait(const MessagePtr& message, std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = timeout.count() > 0 ? Clock::now() + timeout : Clock::time_point::max();
  std::unique_lock lock(mutex_);
  ++waiters_;
  if (driving_ && !message->ended) bell_of(options_.rank).ring();  // the thread makes room
  while (!message->ended) {
    if (driving_) {
      changed_.wait(lock);
    } else {
      step(lock, /*may_spin=*/true);
    }
    if (!message->ended && Clock::now() > deadline) {
      fail(message, concat("Timed out after ", timeout.count(), " ms of waiting in shared memory"));
    }
  }
  --waiters_;
  if (pending_ > 0) changed_.notify_all();
  if (message->error) std::rethrow_exception(message->error);
}

// One look at everything, and a sleep if nothing moved.
void ShmMail::step(std::unique_lock<std::mutex>& lock, bool may_spin) {
  driving_ = true;
  Bell& bell = bell_of(options_.rank);
  const std::uint32_t seen = bell.rings();
  const std::size_t before = pending_;
  make_progress();
  if (pending_ == before) {
    lock.unlock();
    const bool rung = may_spin && spin_.until([&] { return bell.rings() != seen; });
    if (!rung) bell.sleep(seen, kMailSleep);
    lock.lock();
    look_after_peers();
  }
  driving_ = false;
  if (waiters_ > 1 || thread_.joinable()) changed_.notify_all();
}

void ShmMail::run_thread() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (pending_ > 0 && !driving_ && waiters_ == 0); });
    if (stopping_) return;
    step(lock, /*may_spin=*/false);
  }
}

// Not after each ring: it costs a system call for each peer.
void ShmMail::look_after_peers() {
  const auto now = std::chrono::steady_clock::now();
  const bool somebody_left = std::ranges::any_of(all_pending(), [&](const MessagePtr& message) {
    return message->peer != kAnyone && left(message->peer).load() != 0;
  });
  if (!somebody_left && now - looked_ < kMailSleep * 9 / 10) return;
  looked_ = now;
  fail_what_needs_the_gone();
}

// A peer may well leave after its last message, so what it has sent is looked at once more.
void ShmMail::fail_what_needs_the_gone() {
  std::vector<bool> gone, died;
  for (int peer = 0; peer < options_.size; ++peer) {
    const bool here = peer == options_.rank;
    const bool has_left = left(peer).load(std::memory_order_seq_cst) != 0;
    gone.push_back(!here && is_gone(peer));
    died.push_back(gone.back() && !has_left);
  }
  if (std::ranges::find(gone, true) == gone.end()) return;
  make_progress();
  const auto others_gone = std::ranges::count(gone, true);
  for (const auto& message : all_pending()) {
    // One that died may have been the one whom anybody's message was to come from.
    const bool nobody = message->peer == kAnyone ? std::ranges::find(died, true) != died.end() ||
                                                       others_gone == options_.size - 1
                                                 : gone[static_cast<std::size_t>(message->peer)];
    if (nobody) fail(message, "remote process exited (seen in shared memory)");
  }
}

}  // namespace lockstep
