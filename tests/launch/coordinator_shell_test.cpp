#include "launch/coordinator_shell.h"

#include <gtest/gtest.h>

#include "launch/version.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// A job of one node, whose records count as kept when the test says so.
class CoordinatorShellTest : public ::testing::Test {
 protected:
  CoordinatorShellTest() {
    CoordinatorShell::Callbacks callbacks;
    callbacks.to_local_agent = [this](const Message& message) {
      if (std::holds_alternative<Prepare>(message)) ++prepared_;
      if (std::holds_alternative<Finish>(message)) ++finished_;
    };
    callbacks.local_agent_closed = [](const std::string&) {};
    callbacks.say = [](const std::string&) {};
    callbacks.done = [] {};
    callbacks.keep_record = [this](const CoordinatorRecord&, std::function<void()> kept) {
      kept_.push_back(std::move(kept));
    };
    CoordinatorOptions options;
    options.terms.run_id = "job";
    shell_ = std::make_unique<CoordinatorShell>(loop_, options, std::nullopt, callbacks);
    Join join;
    join.node.id = "a";
    join.node.host = "a";
    join.node.workers = 1;
    join.node.version = lockstep_version();
    join.terms = options.terms;
    join.hosts_coordinator = true;
    shell_->from_local_agent(join);
    pass([this] { return !kept_.empty(); });
  }

  void pass(const std::function<bool()>& is_so) {
    const auto end = std::chrono::steady_clock::now() + 20s;
    while (!is_so() && std::chrono::steady_clock::now() < end) loop_.run_once(10ms);
    EXPECT_TRUE(is_so());
  }

  EventLoop loop_;
  std::vector<std::function<void()>> kept_;
  int prepared_ = 0;
  int finished_ = 0;
  std::unique_ptr<CoordinatorShell> shell_;
};

}  // namespace

TEST_F(CoordinatorShellTest, an_epoch_is_announced_when_its_record_is_kept) {
  loop_.run_once(10ms);
  EXPECT_EQ(prepared_, 0);
  kept_.front()();
  pass([this] { return prepared_ == 1; });
}

TEST_F(CoordinatorShellTest, a_job_that_ends_before_the_record_is_kept_announces_no_epoch) {
  shell_->from_local_agent(Leave{15, "a signal"});
  shell_->from_local_agent(Leave{15, "a signal"});
  pass([this] { return finished_ > 0; });
  EXPECT_EQ(prepared_, 0);
}

}  // namespace lockstep
