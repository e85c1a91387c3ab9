#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/head_plan.h"
#include "cluster/starter.h"
#include "launch/console.h"
#include "launch/coordinator_shell.h"
#include "launch/event_loop.h"
#include "launch/events.h"
#include "launch/log_pump.h"
#include "launch/node_store.h"
#include "launch/run_directory.h"
#include "launch/stack_desk.h"
#include "launch/stop_signals.h"
#include "launch/time_left.h"

namespace lockstep {

/// What a head needs from around it. All outlive it.
struct HeadServices {
  EventLoop& loop;
  LogPump& pump;
  SignalInbox& signals;
  Console& console;
  RunDirectory& directory;
  EventLog& events;
};

/// The process from which a job on other machines is started: it hosts the coordinator, starts one
/// agent per machine and starts it again when it dies and the job can go on, passes their output
/// on, and stops the job when it is asked to.
class Head {
 public:
  /// Opens the coordinator's port. Throws SystemError if it cannot be had.
  Head(HeadPlan plan, const HeadServices& services);
  ~Head();
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  /// Runs the job to its end and returns how it ended.
  Finish run();

  /// The last words of a machine that could not be started, if that ended the job.
  const std::vector<std::string>& last_words() const { return last_words_; }

 private:
  struct Node {
    HeadNode plan;
    std::unique_ptr<Starter> starter;
    bool joined = false;                 // the agent of this start has asked to take part
    std::chrono::milliseconds pause{0};  // before it is started again
    EventLoop::TimerId restart{};
  };

  CoordinatorShell::Callbacks coordinator_callbacks();
  void start(std::size_t index);
  void on_join(const NodeInfo& info);
  void note(const std::string& text);
  void write_job();
  void on_end(std::size_t index, const ExitStatus& status);
  void start_later(std::size_t index, const std::string& why);
  void on_signal();
  void say_status();
  void wind_up();
  bool can_go_on() const;
  Epoch epoch() const { return coordinator_ ? coordinator_->epoch() : 0; }
  std::uint64_t stream(std::size_t index, int fd) const { return index * 2 + (fd == 2 ? 1 : 0); }

  HeadPlan plan_;
  HeadServices services_;
  JobPlan store_plan_;  // what the store of --store local asks for
  NodeStore store_;
  TimeLeftFinder time_left_finder_;
  StackDesk stack_desk_;
  JobRecord record_;
  std::unique_ptr<CoordinatorShell> coordinator_;
  std::vector<Node> nodes_;
  EventLoop::TimerId status_timer_{};
  EventLoop::TimerId wind_up_timer_{};
  std::string last_status_;
  std::vector<std::string> last_words_;
  std::optional<EventLoop::Clock::time_point> over_since_;
};

}  // namespace lockstep
