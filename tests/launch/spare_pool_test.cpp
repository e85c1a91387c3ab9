#include "launch/spare_pool.h"

#include <sys/epoll.h>
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>

#include "keeper_support.h"
#include "launch/membership.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using lockstep::testing::kPatience;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;
using lockstep::testing::Watched;
using std::chrono::milliseconds;

namespace {

// A pool whose spares run a shell script.
struct Pool {
  explicit Pool(const std::string& script, int spares = 1) {
    plan.options.spares = spares;
    plan.command.words = {"/bin/sh", "-c", script};
    loop.watch(keeper.fd(), EPOLLIN, [this](std::uint32_t) {
      for (const KeeperEvent& event : keeper.read()) pool.on(event);
    });
  }
  ~Pool() { loop.unwatch(keeper.fd()); }

  bool eventually(const std::function<bool()>& holds) {
    const auto limit = EventLoop::Clock::now() + kPatience;
    while (!holds()) {
      if (EventLoop::Clock::now() > limit) return false;
      loop.run_once(milliseconds(5));
    }
    return true;
  }
  int events(const std::string& kind) const {
    if (!std::filesystem::exists(folder / "events")) return 0;
    const std::string text = read_text(folder / "events");
    int count = 0;
    for (std::size_t at = 0; (at = text.find("\"" + kind + "\"", at)) != std::string::npos; ++at) {
      ++count;
    }
    return count;
  }
  TemporaryFolder folder;
  Keeper keeper;
  EventLoop loop;
  LogPump pump;
  EventLog log{{.path = folder / "events", .host = "here"}};
  JobPlan plan{.options = {}, .environment = Environment::of_process()};
  std::string said;
  SparePool pool{plan,
                 {.loop = loop,
                  .keeper = keeper,
                  .pump = pump,
                  .events = log,
                  .agent_socket = "/socket",
                  .run_directory = "/run",
                  .say = [this](const std::string& text) { said += text + "\n"; },
                  .back_off = milliseconds(1)}};
  Membership membership = form_memberships({NodeInfo{.id = "a", .host = "a"}}, 1, 0).front();
};

}  // namespace

TEST(SparePool, a_spare_knows_the_job_and_no_place_in_it) {
  TemporaryFolder folder;
  Pool pool(concat("env > ", folder / "new", "; mv ", folder / "new", " ", folder / "env",
                   "; exec sleep 1000"));
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return std::filesystem::exists(folder / "env"); }));
  const std::string text = "\n" + read_text(folder / "env");
  for (const char* there : {"\nLOCKSTEP_SPARE=1\n", "\nLOCKSTEP_AGENT=/socket\n",
                            "\nWORLD_SIZE=1\n", "\nLOCKSTEP_RUN_DIR=/run\n"}) {
    EXPECT_NE(text.find(there), std::string::npos) << there;
  }
  for (const char* missing : {"\nRANK=", "\nLOCAL_RANK=", "\nLOCKSTEP_EPOCH=", "\nLOCKSTEP_SLOT=",
                              "\nMASTER_PORT=", "\nLOCKSTEP_JOINS="}) {
    EXPECT_EQ(text.find(missing), std::string::npos) << missing;
  }
}

TEST(SparePool, holds_as_many_as_were_asked_for_and_is_filled_again) {
  Pool pool("exec sleep 1000", 2);
  EXPECT_FALSE(pool.pool.take());
  pool.pool.fill(pool.membership);
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return pool.events("spare_start") == 2; }));
  EXPECT_FALSE(pool.pool.take());  // they have not said yet that they wait
  pool.pool.set_ready(2);
  const auto spare = pool.pool.take();
  ASSERT_TRUE(spare);
  EXPECT_EQ(spare->number, 2);
  EXPECT_EQ(pool.pool.number_of(spare->pid), std::nullopt);
  EXPECT_FALSE(pool.pool.take());
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return pool.events("spare_start") == 3; }));

  const Watched process(spare->pid);
  pool.pool.discard(*spare);
  EXPECT_TRUE(process.ended_within(kPatience));
  EXPECT_EQ(pool.events("spare_exit"), 0);
}

TEST(SparePool, a_spare_that_ends_is_started_again_quietly) {
  TemporaryFolder folder;
  Pool pool(concat("test -e ", folder / "once", " || { touch ", folder / "once",
                   "; exit 3; }; exec sleep 1000"));
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return pool.events("spare_start") == 2; }));
  EXPECT_EQ(pool.events("spare_exit"), 1);
  EXPECT_EQ(pool.said, "");
}

TEST(SparePool, gives_up_when_they_go_on_ending_and_says_why) {
  Pool pool("echo no luck >&2; exit 3");
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return !pool.said.empty(); }));
  EXPECT_EQ(
      pool.said,
      "no more spares are started: 5 ended one after the other (the last one: exit code 3: no "
      "luck); a worker that dies is replaced by a fresh process\n");
  EXPECT_EQ(pool.events("spare_exit"), 5);
  pool.pool.fill(pool.membership);
  EXPECT_FALSE(pool.pool.take());
}

TEST(SparePool, a_program_that_is_not_there_is_no_reason_to_fail) {
  Pool pool("");
  pool.plan.command.words = {"/nonexistent/program"};
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return !pool.said.empty(); }));
  EXPECT_NE(pool.said.find("/nonexistent/program"), std::string::npos);
}

TEST(SparePool, stop_ends_them_also_those_that_do_not_listen) {
  TemporaryFolder folder;
  Pool pool(concat("trap '' TERM; touch ", folder / "deaf", "; while :; do sleep 1; done"));
  pool.pool.fill(pool.membership);
  ASSERT_TRUE(pool.eventually([&] { return std::filesystem::exists(folder / "deaf"); }));
  pool.pool.stop();
  ASSERT_TRUE(pool.eventually([&] { return pool.events("spare_exit") == 1; }));
  pool.pool.fill(pool.membership);
  pool.pool.forget();
  EXPECT_EQ(pool.events("spare_start"), 1);
  pool.pool.fill(pool.membership);
  EXPECT_TRUE(pool.eventually([&] { return pool.events("spare_start") == 2; }));
  EXPECT_EQ(pool.said, "");
}
