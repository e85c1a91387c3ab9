// The network between the nodes, before a job of fixed size begins.
#include <gtest/gtest.h>

#include "launch/coordinator.h"
#include "tests/launch/state_machine_drivers.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

/// A job whose nodes answer as they are told to. "b" is at 10.0.0.2 and 10.1.0.2.
class SurveyedJob : public CoordinatorDriver {
 public:
  explicit SurveyedJob(const JobTerms& terms) : CoordinatorDriver(terms) {
    options().surveys_network = true;
  }

  void give_addresses(const std::string& id) {
    const std::string last = std::to_string(id[0] - 'a' + 1);
    const auto ask = this->last<AskAddresses>(id);
    ASSERT_TRUE(ask) << id;
    tell(
        id,
        Addresses{
            ask->round,
            {{.address = "10.0.0." + last, .prefix_length = 24, .interface = "eth0", .port = 40000},
             {.address = "10.1.0." + last,
              .prefix_length = 24,
              .interface = "eth1",
              .port = 40001}},
            ""});
  }
  /// Reaches all but what is at these addresses.
  void probe(const std::string& id, const std::vector<std::string>& dead = {}) {
    const auto probes = last<ProbeNodes>(id);
    ASSERT_TRUE(probes) << id;
    Probed answer{probes->round, {}};
    for (const ProbeTarget& target : probes->targets) {
      if (std::ranges::find(dead, target.at) == dead.end()) continue;
      answer.failures.push_back({target.node, target.address, "no answer"});
    }
    tell(id, answer);
  }
  void survey(const std::vector<std::string>& ids, const std::vector<std::string>& dead = {}) {
    for (const std::string& id : ids) give_addresses(id);
    for (const std::string& id : ids) probe(id, dead);
  }
};

TEST(CoordinatorSurvey, AJobBeginsWhenAllHaveReachedAll) {
  SurveyedJob job(fixed(3));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  EXPECT_EQ(job.phase(), Phase::gathering);
  for (const char* id : {"a", "b", "c"}) job.give_addresses(id);
  EXPECT_EQ(job.last<ProbeNodes>("b")->targets.size(), 2u);
  job.probe("a");
  job.probe("b");
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.probe("c");
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.last<Prepare>("b")->membership.self.address, "10.0.0.2");
  EXPECT_NE(job.said().find("network: 10.0.0.0/24 (eth0) on all 3 nodes"), std::string::npos);
}

TEST(CoordinatorSurvey, OneNodeAndLoopbackDoWithout) {
  SurveyedJob alone(fixed(1));
  alone.join("a");
  EXPECT_EQ(alone.phase(), Phase::preparing);
  SurveyedJob here(fixed(2));
  for (const char* id : {"a", "b"}) {
    Join join = here.join_of(node_info(id));
    join.node.address = "127.0.0.1";
    here.tell(id, join);
  }
  EXPECT_EQ(here.phase(), Phase::preparing);
}

TEST(CoordinatorSurvey, AnElasticJobLooksWhenItsLastCallIsOver) {
  SurveyedJob job(elastic(2, 4));
  job.join("a");
  job.join("b");
  job.pass(31s, {"a", "b"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.survey({"a", "b"});
  EXPECT_EQ(job.phase(), Phase::preparing);  // and there is no second one
  EXPECT_EQ(job.coordinator().participants().size(), 2u);
}

TEST(CoordinatorSurvey, AnElasticJobGoesOnWithoutANewNodeThatIsNotReached) {
  SurveyedJob job(elastic(2, 3));
  job.join("a");
  job.join("b");
  job.pass(31s, {"a", "b"});
  job.survey({"a", "b"});
  job.ready({"a", "b"});
  EXPECT_EQ(job.phase(), Phase::running);
  job.join("c");
  job.stopped({"a", "b"});
  const std::vector<std::string> dead{"10.0.0.3", "10.1.0.3"};
  for (int look = 0; look < 3; ++look) {
    ASSERT_EQ(job.phase(), Phase::gathering);
    job.survey({"a", "b", "c"}, dead);                           // first choices
    for (const char* id : {"a", "b", "c"}) job.probe(id, dead);  // all
    job.pass(2s, {"a", "b", "c"});
  }
  ASSERT_TRUE(job.last<Refused>("c"));
  EXPECT_NE(job.last<Refused>("c")->reason.find("no network joins all nodes"), std::string::npos);
  EXPECT_TRUE(job.closed(job.link_of("c")));
  EXPECT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.coordinator().participants(), (std::vector<std::string>{"a", "b"}));
}

TEST(CoordinatorSurvey, AnElasticJobThatNoNetworkJoinsEnds) {
  SurveyedJob job(elastic(1, 2));
  job.join("a");
  job.join("b");
  const std::vector<std::string> dead{"10.0.0.2", "10.1.0.2"};
  for (int look = 0; look < 3; ++look) {
    ASSERT_EQ(job.phase(), Phase::gathering);
    job.survey({"a", "b"}, dead);
    for (const char* id : {"a", "b"}) job.probe(id, dead);
    job.pass(2s, {"a", "b"});
  }
  EXPECT_EQ(job.phase(), Phase::finished);
}

TEST(CoordinatorSurvey, AnAddressThatIsNotReachedMovesAllAndStaysSo) {
  SurveyedJob job(fixed(2, 1));
  job.join("a");
  job.join("b");
  job.survey({"a", "b"}, {"10.0.0.2"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.probe("a", {"10.0.0.2"});
  job.probe("b");
  ASSERT_EQ(job.phase(), Phase::preparing);
  EXPECT_EQ(job.last<Prepare>("b")->membership.self.address, "10.1.0.2");
  job.ready({"a", "b"});
  EXPECT_EQ(job.last<Start>("b")->master_addr, "10.1.0.1");
  // A restart with the same nodes asks nobody again, also when one has been away.
  job.forget_messages();
  job.close("b");
  job.rejoin("b", 12, NodePhase::running, job.coordinator().epoch());
  job.tell("a", job.failure(0, 1));
  job.stopped({"a"});
  job.tell(12, Stopped{job.coordinator().epoch(), {}});
  ASSERT_EQ(job.phase(), Phase::preparing);
  EXPECT_FALSE(job.last<AskAddresses>("a"));
  EXPECT_EQ(job.last<Prepare>("a")->membership.nodes[1].address, "10.1.0.2");
}

TEST(CoordinatorSurvey, OnlyWhoIsNewIsTried) {
  SurveyedJob job(fixed(3, 1));
  for (const char* id : {"a", "b", "c"}) job.join(id);
  job.survey({"a", "b", "c"});
  job.ready({"a", "b", "c"});
  job.close("c");
  job.pass(3s, {"a", "b"});
  job.stopped({"a", "b"});
  job.join("d");
  for (const char* id : {"a", "b", "d"}) job.give_addresses(id);
  EXPECT_EQ(job.last<ProbeNodes>("a")->targets.size(), 1u);  // d
  EXPECT_EQ(job.last<ProbeNodes>("d")->targets.size(), 2u);
  for (const char* id : {"a", "b", "d"}) job.probe(id);
  EXPECT_EQ(job.phase(), Phase::preparing);
}

TEST(CoordinatorSurvey, ItFailsOnlyWhenLookedAtThreeTimes) {
  SurveyedJob job(fixed(2));
  job.join("a");
  job.join("b");
  const std::vector<std::string> dead = {"10.0.0.2", "10.1.0.2"};
  for (int look = 0; look < 3; ++look) {
    EXPECT_EQ(job.phase(), Phase::gathering) << look;
    job.survey({"a", "b"}, dead);
    job.probe("a", dead);
    job.probe("b");
    job.pass(1500ms, {"a", "b"});
  }
  EXPECT_EQ(job.phase(), Phase::finished);
  const std::string reason = job.last<Finish>("b")->reason;
  EXPECT_NE(reason.find("no network joins all nodes"), std::string::npos) << reason;
  EXPECT_NE(reason.find("a does not reach b at 10.0.0.2 (eth0)"), std::string::npos) << reason;
}

TEST(CoordinatorSurvey, ANodeThatIsLostMeanwhileIsNoFaultOfTheNetwork) {
  SurveyedJob job(fixed(2));
  job.join("a");
  job.join("b");
  job.survey({"a", "b"}, {"10.0.0.2"});
  job.probe("a", {"10.0.0.2", "10.1.0.2"});
  job.close("b");
  job.pass(30s, {"a"});
  EXPECT_EQ(job.phase(), Phase::gathering);
  // It comes back, and all begins anew; late answers are none.
  job.join("b");
  job.probe("b");
  EXPECT_EQ(job.phase(), Phase::gathering);
  job.survey({"a", "b"});
  EXPECT_EQ(job.phase(), Phase::preparing);
}

TEST(CoordinatorSurvey, ANodeThatComesOverAnotherConnectionIsAskedAgain) {
  SurveyedJob job(fixed(2));
  job.join("a");
  job.join("b");
  job.give_addresses("a");
  job.rejoin("b", 12, NodePhase::idle, 0);
  ASSERT_TRUE(job.last<AskAddresses>(12));
  EXPECT_EQ(job.last<AskAddresses>(12)->round, job.last<AskAddresses>("a")->round);
}

TEST(CoordinatorSurvey, WhoDoesNotAnswerIsNamed) {
  SurveyedJob job(fixed(2));
  job.join("a");
  job.join("b");
  for (int look = 0; look < 3; ++look) {
    job.give_addresses("a");
    job.pass(12s, {"a", "b"});
  }
  EXPECT_EQ(job.phase(), Phase::finished);
  EXPECT_NE(job.last<Finish>("a")->reason.find("no answer from b"), std::string::npos);
}

TEST(CoordinatorSurvey, WhatANodeHasToDoDoesNotGrowWithTheJob) {
  SurveyedJob job(fixed(20));
  std::vector<std::string> ids;
  for (char id = 'a'; id < 'a' + 20; ++id) ids.emplace_back(1, id);
  for (const std::string& id : ids) job.join(id);
  for (const std::string& id : ids) job.give_addresses(id);
  for (const std::string& id : ids) EXPECT_EQ(job.last<ProbeNodes>(id)->targets.size(), 8u);
  for (const std::string& id : ids) job.probe(id);
  EXPECT_EQ(job.phase(), Phase::preparing);
}

}  // namespace
}  // namespace lockstep
