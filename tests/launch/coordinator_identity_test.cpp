// Nodes with another version of lockstep or of the program.
#include <gtest/gtest.h>

#include "launch/coordinator.h"
#include "tests/launch/state_machine_drivers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

Join with(const CoordinatorDriver& job, const std::string& id, const ProgramIdentity& program,
          const std::string& version = "1.0") {
  Join join = job.join_of(node_info(id));
  join.node.program = program;
  join.node.version = version;
  return join;
}

const ProgramIdentity kTrain{.name = "train.py", .digest = "abc 12", .arguments = "x"};

TEST(CoordinatorIdentity, EqualProgramsMeetWithoutAWord) {
  CoordinatorDriver job(fixed(2));
  job.tell("a", with(job, "a", kTrain));
  job.tell("b", with(job, "b", kTrain));
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.said().find("train.py"), std::string::npos) << job.said();
}

TEST(CoordinatorIdentity, AStaleCopyIsRefusedWithBothNodesNamed) {
  CoordinatorDriver job(fixed(2));
  job.tell("a", with(job, "a", kTrain));
  job.tell("b", with(job, "b", {.name = "train.py", .digest = "def 13", .arguments = "x"}));
  ASSERT_TRUE(job.last<Refused>("b"));
  const std::string reason = job.last<Refused>("b")->reason;
  for (const char* part : {"train.py on b", "the one on a", "abc 12", "def 13", "copy"}) {
    EXPECT_NE(reason.find(part), std::string::npos) << reason;
  }
  EXPECT_NE(job.said().find("refused b (10.0.0.2): train.py on b"), std::string::npos);
  // Renewed, it may come.
  job.tell("b", with(job, "b", kTrain));
  EXPECT_EQ(job.phase(), Phase::preparing);
}

TEST(CoordinatorIdentity, AnotherVersionOfLockstepIsRefused) {
  CoordinatorDriver job(fixed(2));
  job.tell("a", with(job, "a", kTrain));
  job.tell("b", with(job, "b", kTrain, "0.9"));
  ASSERT_TRUE(job.last<Refused>("b"));
  EXPECT_NE(job.last<Refused>("b")->reason.find("b has lockstep 0.9"), std::string::npos);
}

TEST(CoordinatorIdentity, WhatIsNotKnownIsNotCompared) {
  CoordinatorDriver job(fixed(2));
  job.tell("a", with(job, "a", {.name = "pkg.train", .digest = "", .arguments = "x"}));
  job.tell("b", with(job, "b", {.name = "pkg.train", .digest = "abc 1", .arguments = "x"}));
  EXPECT_EQ(job.phase(), Phase::preparing);
}

TEST(CoordinatorIdentity, AnotherProgramOrOtherArgumentsAreSaidAndTaken) {
  CoordinatorDriver job(fixed(3));
  job.tell("a", with(job, "a", kTrain));
  job.tell("b", with(job, "b", {.name = "trainer", .digest = "def 13", .arguments = "x"}));
  job.tell("c", with(job, "c", {.name = "train.py", .digest = "abc 12", .arguments = "y"}));
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_NE(job.said().find("node b runs trainer, and a runs train.py"), std::string::npos);
  EXPECT_NE(job.said().find("the arguments of train.py on c are not those on a"),
            std::string::npos);
}

CoordinatorDriver allocation_of_three() {
  CoordinatorDriver job(fixed(3));
  job.options().expected_hosts = {"a", "b", "c.example.org"};
  job.options().cure_if_alone = "put srun before it";
  job.options().start_timeout = 60s;
  return job;
}

TEST(CoordinatorAlone, InAnAllocationTheJobEndsWithTheCure) {
  CoordinatorDriver job = allocation_of_three();
  job.join("a");
  job.pass(59s, {"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.pass(2s, {"a"});
  ASSERT_TRUE(job.last<Finish>("a"));
  EXPECT_EQ(job.last<Finish>("a")->code, 1);
  const std::string reason = job.last<Finish>("a")->reason;
  EXPECT_NE(reason.find("started on a only"), std::string::npos) << reason;
  EXPECT_NE(reason.find("(b, c.example.org)"), std::string::npos) << reason;
  EXPECT_NE(reason.find("put srun before it"), std::string::npos) << reason;
}

TEST(CoordinatorAlone, WhereOthersHaveComeTheRestIsAwaited) {
  CoordinatorDriver job = allocation_of_three();
  job.join("a");
  job.join("b");
  job.pass(90s, {"a", "b"});
  EXPECT_EQ(job.phase(), Phase::gathering);
}

TEST(CoordinatorAlone, WhereNoSchedulerHasNamedNodesTheyMayComeLater) {
  CoordinatorDriver job(fixed(3));
  job.options().start_timeout = 60s;
  job.join("a");
  job.pass(90s, {"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
}

TEST(CoordinatorAlone, WhoWasNotAloneBeforeIsNot) {
  CoordinatorDriver job = allocation_of_three();
  job.join("a");
  job.join("b");
  job.close("b");
  job.pass(90s, {"a"});  // b is lost
  EXPECT_EQ(job.phase(), Phase::gathering);
}

}  // namespace
}  // namespace lockstep
