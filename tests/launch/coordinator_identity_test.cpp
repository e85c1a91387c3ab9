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

TEST(CoordinatorAlone, InAnAllocationTheCureIsNamedAfterAWhile) {
  CoordinatorDriver job(fixed(3));
  job.options().expected_hosts = {"a", "b", "c.example.org"};
  job.join("a");
  job.pass(19s, {"a"});
  EXPECT_EQ(job.said().find("only"), std::string::npos) << job.said();
  job.pass(7s, {"a"});
  const std::string said = job.said();
  EXPECT_NE(said.find("started on a only"), std::string::npos) << said;
  EXPECT_NE(said.find("(b, c.example.org)"), std::string::npos) << said;
  EXPECT_NE(said.find("srun"), std::string::npos) << said;
  job.pass(60s, {"a"});
  EXPECT_EQ(job.said(), said);  // once
}

TEST(CoordinatorAlone, WhereOthersHaveComeItIsNotSaid) {
  CoordinatorDriver job(fixed(3));
  job.options().expected_hosts = {"a", "b", "c"};
  job.join("a");
  job.join("b");
  job.pass(60s, {"a", "b"});
  EXPECT_EQ(job.said().find("only"), std::string::npos) << job.said();
}

}  // namespace
}  // namespace lockstep
