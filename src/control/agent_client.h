#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "control/frame.h"
#include "control/progress_meter.h"
#include "control/worker_messages.h"
#include "core/unique_fd.h"
#include "lockstep/environment.h"

namespace lockstep {

/// A worker's line to the agent that started it: tells how far the program is, and hears when it is
/// to stop and how much time that leaves.
///
/// It has a thread of its own, which connects, sends heartbeats and calls back. Whatever becomes of
/// the agent, the program is not disturbed: nothing here throws or waits for it, and problem() says
/// what happened. All functions may be called from any thread; callbacks run on the client's thread
/// and must neither throw nor destroy it. After fork() the child's copy does nothing.
class AgentClient {
 public:
  struct Options {
    std::string socket_path;
    WorkerHello hello;
  };

  /// Null unless LOCKSTEP_AGENT is set. Throws InvalidArgument if RANK, LOCKSTEP_SLOT or
  /// LOCKSTEP_EPOCH, which come with it, are missing or no numbers. With LOCKSTEP_SPARE=1 they do
  /// not: see await_place().
  static std::unique_ptr<AgentClient> from_environment(const Environment& environment);

  explicit AgentClient(Options options);

  /// Sends what was said before, for at most half a second.
  ~AgentClient();
  AgentClient(const AgentClient&) = delete;
  AgentClient& operator=(const AgentClient&) = delete;

  /// Where the program is, and for what it waits. The agent hears the latest, once in a heartbeat
  /// interval.
  const std::shared_ptr<ProgressMeter>& meter() const { return meter_; }
  void report(std::int64_t step, std::string_view phase) { meter_->report(step, phase); }

  /// A collective broke; ranks where they are known.
  void report_lost_peers(std::vector<int> ranks, std::string operation);

  /// This program has the job's state after so many committed steps, as the others of that
  /// membership have it, and can be carried into another one. Not sent to an agent that does not
  /// know of it.
  void report_recovers(std::uint64_t epoch, std::int64_t committed_steps);

  /// Takes report_recovers() back: the program goes on to something that cannot be repeated.
  void report_recovers_no_more(std::uint64_t epoch, std::int64_t committed_steps);

  /// The state of these ranks of a membership is not that of the others. Not sent to an agent that
  /// cannot act on it.
  void reject(std::uint64_t epoch, std::vector<int> ranks, std::string reason);

  /// The program ends now, all being well.
  void leave();

  /// Whether the agent has said that it replaces workers in place.
  bool replaces_workers() const;

  bool stop_requested() const { return stop_requested_.load(std::memory_order_acquire); }

  /// How much of the time to stop is left, at least 0; std::nullopt unless stop_requested().
  std::optional<std::chrono::milliseconds> stop_deadline() const;
  std::string stop_reason() const;

  /// Called for each request to stop; at once, on the calling thread, if one has come before.
  void on_stop(std::function<void()> callback);

  /// The latest revocation that came, if one has. A membership that is newer answers it.
  std::optional<RevokeWorld> revoked() const;

  /// Called for each revocation; at once, on the calling thread, if one has come that no membership
  /// has answered yet.
  void on_revoke(std::function<void(const RevokeWorld&)> callback);

  /// Waits for a membership of this epoch or a later one that has not been revoked again;
  /// std::nullopt at the limit, or when none can come any more: the agent is gone, or wants the
  /// program to stop.
  std::optional<NewWorld> await_world(std::uint64_t least_epoch, std::chrono::milliseconds limit);

  /// For a spare: waits until the agent gives it a dead worker's place; std::nullopt at the limit,
  /// or when none can come any more: the agent is gone, or wants the program to stop.
  std::optional<TakePlace> await_place(std::chrono::milliseconds limit);

  /// The latest membership that the agent announced, if it has.
  std::optional<NewWorld> new_world() const;

  /// Called for each new membership; at once, on the calling thread, if one has come before.
  void on_new_world(std::function<void(const NewWorld&)> callback);

  /// Whether the agent has welcomed this worker and is there.
  bool connected() const;
  /// The same once that is known: waits until the agent has answered, or it is clear that it will
  /// not.
  bool await_welcome() const;

  /// Why it is not connected any more; empty while it is, or may still be.
  std::string problem() const;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void converse();
  bool may_end() const;
  bool welcomed() const { return protocol_ != 0; }
  bool wait();     // false: nothing came until the next heartbeat
  bool receive();  // false: the agent is gone
  void handle(const MessageToWorker& message);
  void handle_stop(const StopWorker& stop);
  void handle_revoke(const RevokeWorld& revoke);
  void handle_new_world(const NewWorld& world);
  void handle_take_place(const TakePlace& take);
  void post(MessageFromWorker message);
  bool is_revoked() const;
  void send(const MessageFromWorker& message);
  void take_outbox();
  void beat_if_due();
  void flush();
  void end(const std::string& problem);

  const Options options_;
  const std::int64_t pid_;
  const std::shared_ptr<ProgressMeter> meter_ = std::make_shared<ProgressMeter>();
  UniqueFd wake_;  // an eventfd: there is something in the outbox, or the end has come

  // Of the thread alone.
  UniqueFd socket_;
  FrameDecoder decoder_;
  std::string output_;
  std::chrono::milliseconds interval_{1000};
  Clock::time_point next_beat_;  // until the welcome: when to give up waiting for it
  int protocol_ = 0;             // 0: not welcomed yet

  std::atomic<bool> stop_requested_ = false;
  mutable std::mutex mutex_;  // for everything below
  std::vector<MessageFromWorker> outbox_;
  std::string stop_reason_;
  Clock::time_point stop_at_;
  std::function<void()> on_stop_;
  std::optional<RevokeWorld> revoked_;
  std::function<void(const RevokeWorld&)> on_revoke_;
  std::optional<TakePlace> place_;
  std::optional<NewWorld> new_world_;
  std::function<void(const NewWorld&)> on_new_world_;
  mutable std::condition_variable changed_;  // the welcome, a membership, a stop, or the end
  bool connected_ = false;
  bool replaces_ = false;
  std::string problem_;
  std::optional<Clock::time_point> end_by_;  // the destructor waits

  std::thread thread_;
};

}  // namespace lockstep
