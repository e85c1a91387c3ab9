#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/link_session.h"
#include "core/unique_fd.h"
#include "lockstep/rpc.h"
#include "rpc/event_loop.h"
#include "rpc/inbox.h"
#include "rpc/outbox.h"
#include "rpc/pending_calls.h"
#include "rpc/segment.h"

namespace lockstep::rpc {

/// A connection between two agents: one of them calls, the other serves. Thread-safe.
class Connection : public EventLoop::Handler,
                   public std::enable_shared_from_this<Connection>,
                   private Inbox::Listener {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Who hears of it, on the loop's thread.
  struct Events {
    std::function<void(const std::shared_ptr<Connection>&, Received)> on_call;
    std::function<void(Connection&, std::uint64_t object)> on_drop_object;
    std::function<void(Connection&)> on_closed;
  };

  struct Options {
    bool calls = false;  // the end that has connected
    bool local = false;  // a unix socket
    HelloFrame hello;
    std::string expected_name;  // of the peer; empty: any
    Inbox::Limits limits;
    std::shared_ptr<SegmentPool> pool = nullptr;     // null: no memory is shared
    std::optional<LinkSessionOptions> link = {};     // how both prove themselves, over TCP
    bool link_carries_frames = true;                 // also after that
    std::chrono::milliseconds greeting_limit{5000};  // of a stranger
    /// Of segments that the peer has announced. No honest one shares more memory than there is.
    std::size_t max_mapped_bytes = physical_memory();
  };

  static std::shared_ptr<Connection> open(UniqueFd socket, Options options, Events events,
                                          std::shared_ptr<EventLoop> loop);
  ~Connection() override;

  /// Whether the peer has said hello; waits for it. False: failure() says why not.
  bool wait_ready(Time deadline);
  bool closed() const;
  bool ready() const;
  Failure failure() const;
  std::string peer_name() const;
  std::uint64_t number() const { return number_; }
  std::uint32_t max_calls() const { return options_.hello.max_calls; }
  bool local() const { return options_.local; }

  /// Calls. What goes wrong is in the call's state.
  void call(PendingCall call, MessageHead head, Payload payload);
  void answer(std::uint64_t id, Payload payload);
  void answer(std::uint64_t id, const Failure& failure);
  void send(FrameKind kind, std::uint64_t number);
  void forget_segment(std::uint64_t segment);

  /// Whether one more call may be served, on the loop's thread. It counts until its answer has
  /// left, so that a peer which reads none cannot have any number of them kept for it.
  bool begin_call(int limit);

  /// Says goodbye after all answers, and fails what is pending. The connection ends when the peer
  /// has heard it.
  void say_goodbye();
  std::size_t queued_bytes() const;
  /// Ends it from any thread; on_closed follows on the loop's.
  void end(const Failure& failure);
  void fail_pending(const Failure& failure) { pending_.fail_all(failure); }

  void on_events(std::uint32_t events) override;
  Time on_time(Time now) override;

 private:
  Connection(UniqueFd socket, Options options, Events events, std::shared_ptr<EventLoop> loop);

  // Inbox::Listener
  void on_hello(const HelloFrame& hello) override;
  bool wants(const MessageHead& head) override;
  void on_unwanted(std::uint64_t id) override;
  Blob shared_blob(const BlobPlace& place) override;
  void on_message(Received message) override;
  void on_failure(FailureFrame failure) override;
  void on_segment(const SegmentFrame& segment) override;
  void on_release(std::uint64_t segment) override;
  void on_forget(std::uint64_t segment) override;
  void on_drop_object(std::uint64_t object) override;
  void on_goodbye() override;

  /// The lock. What was sent is let go of after it: that may be memory which has to be given back
  /// over this connection.
  class Locked {
   public:
    explicit Locked(Connection& connection) : connection_(connection), lock_(connection.mutex_) {}
    ~Locked() {
      if (!lock_.owns_lock()) lock_.lock();
      spent_ = connection_.outbox_.take_spent();
      lock_.unlock();
    }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    Connection& connection_;
    std::vector<std::shared_ptr<void>> spent_;
    std::unique_lock<std::mutex> lock_;
  };

  void start();
  bool read_some();
  bool read_frames();
  bool read_link();
  void link_established();
  std::vector<std::shared_ptr<Segment>> place_blobs(MessageHead& head, Payload& payload);
  bool send_message(MessageHead head, Payload payload, Time deadline);
  void push_locked(FrameKind kind, std::string_view content,
                   std::shared_ptr<Segment> segment = nullptr);
  void flush_locked();
  void close(const Failure& failure);

  const Options options_;
  const Events events_;
  const std::shared_ptr<EventLoop> loop_;
  const Time opened_ = std::chrono::steady_clock::now();
  UniqueFd socket_;
  std::uint64_t number_ = 0;
  PendingCalls pending_;

  // The loop's thread only.
  Inbox inbox_;
  FrameStream stream_;
  std::deque<UniqueFd> descriptors_;  // that came with the bytes
  std::map<std::uint64_t, std::shared_ptr<MappedMemory>> mapped_;
  std::size_t mapped_bytes_ = 0;
  std::vector<char> link_buffer_;
  std::atomic<int> open_calls_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Outbox outbox_;
  std::optional<LinkSession> link_;
  bool established_ = false;  // frames may be sent
  bool ready_ = false;
  bool closed_ = false;
  bool wants_to_write_ = false;
  bool goodbye_waits_ = false;  // for the outbox to be empty
  std::string peer_name_;
  std::optional<Failure> failure_;
  std::set<std::uint64_t> announced_;
  std::multimap<std::uint64_t, std::shared_ptr<Segment>> lent_;
};

}  // namespace lockstep::rpc
