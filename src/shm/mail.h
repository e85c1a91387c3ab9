#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shm/futex.h"
#include "shm/mail_ring.h"
#include "shm/shared_segment.h"

namespace lockstep {

class Bell;

/// Messages between two ranks of one machine, through memory which they share: a ring of bytes for
/// each ordered pair.
///
/// A receive gets the first message from its peer that has its tag and that no earlier receive
/// got. Whatever else comes before it is kept. Messages between other pairs never hold one up, and
/// a send that fits into the ring ends before anybody receives it.
///
/// Whoever waits moves the bytes of all messages of this rank; a thread does while nobody waits.
///
/// Thread-safe.
class ShmMail {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::function<bool(int peer)> peer_ended;  // whether its process has; called now and then
  };

  static constexpr int kAnyone = -1;

  static std::size_t bytes_needed(int ranks);

  /// The segment, zeroed, has so many bytes from `offset` on, which nobody has reserved.
  ShmMail(std::shared_ptr<const SharedSegment> segment, std::size_t offset, Options options);
  ~ShmMail();

  struct Content {
    void* data = nullptr;  // sent from, or received to; stays valid until the message has ended
    std::size_t bytes = 0;
    std::uint32_t tag = 0;
    std::function<void()> arrived = {};  // called when it has come, by whichever thread; must not
                                         // use the mail
    std::shared_ptr<void> owner = {};    // of the data, kept until then
  };
  class Message;
  using MessagePtr = std::shared_ptr<Message>;

  MessagePtr send(int peer, Content content);
  MessagePtr receive(int peer, Content content);

  bool has_ended(const MessagePtr& message);
  bool has_failed(const MessagePtr& message);
  /// Whom it came from; of a message that has ended.
  int source_of(const MessagePtr& message);
  /// Throws what the message failed of. 0: no time-out.
  void wait(const MessagePtr& message, std::chrono::milliseconds timeout);

  /// Nobody shall wait for this rank any more: here everything fails from now on, and at others
  /// what needs this rank. What it has sent stays valid.
  void leave();

 private:
  struct Inbox {        // what comes from a peer
    bool open = false;  // a message is on its way
    MailHeader header;
    std::size_t arrived = 0;
    MessagePtr target;            // to a receive
    std::vector<std::byte> kept;  // or to nobody yet
    bool unwanted = false;        // or to nobody at all

    struct Kept {
      std::uint32_t tag = 0;
      std::vector<std::byte> bytes;
    };
    std::deque<Kept> waiting;  // whole messages that no receive has asked for
  };

  MailRing& ring_to(int peer) { return out_[static_cast<std::size_t>(peer)]; }
  Bell& bell_of(int rank) const;
  std::atomic<std::uint32_t>& left(int rank) const;
  bool is_gone(int peer) const;

  void start(const MessagePtr& message);
  bool make_progress();
  bool push(int peer);
  bool pull(int peer);
  void open_message(int peer, Inbox& inbox);
  void close_message(int peer, Inbox& inbox);
  bool take_kept(const MessagePtr& receive);
  MessagePtr find_receive(int peer, std::uint32_t tag);
  bool fill(const MessagePtr& receive, int peer, std::size_t bytes);
  bool expects_from(int peer) const;
  void finish(const MessagePtr& message);
  void fail(MessagePtr message, const std::string& reason);
  void look_after_peers();
  void fail_what_needs_the_gone();
  void forget(const MessagePtr& message);
  std::vector<MessagePtr> all_pending() const;

  void step(std::unique_lock<std::mutex>& lock, bool may_spin);
  void run_thread();

  std::shared_ptr<const SharedSegment> segment_;
  std::byte* memory_;
  Options options_;
  std::vector<MailRing> out_, in_;  // by peer

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<MessagePtr>> outboxes_;
  std::vector<Inbox> inboxes_;
  std::list<MessagePtr> receives_;  // that no message has come for yet
  std::vector<bool> reserved_;      // rings, by peer
  std::size_t pending_ = 0;
  std::chrono::steady_clock::time_point looked_{};  // after peers
  bool driving_ = false;                            // somebody moves bytes, or sleeps by the bell
  int waiters_ = 0;
  bool stopping_ = false;
  Spin spin_;
  std::thread thread_;  // started by the first message that does not end at once
};

}  // namespace lockstep
