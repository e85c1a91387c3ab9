#include "launch/leadership.h"

#include <deque>
#include <memory>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/launch/fake_etcd.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

/// Nodes that decide through one etcd who leads.
class World {
 public:
  struct Node {
    std::string id;
    std::unique_ptr<Leadership> leadership;
    std::optional<EtcdRequest> asked;
    std::vector<Lead> led;
    std::vector<Follow> followed;
    std::vector<std::uint64_t> kept;
    std::string said;
    bool reaches_etcd = true;
    bool alive = true;
  };

  Node& add(const std::string& id, const std::string& secret = "secret") {
    Node& node = nodes_.emplace_back();
    node.id = id;
    node.leadership = std::make_unique<Leadership>(
        LeadershipOptions{
            .keys = {.prefix = "/lockstep", .run_id = "job", .secret = secret},
            .self = {.term = 0, .id = id, .host = id, .address = "10.0.0.1", .port = 1}},
        now_);
    return node;
  }

  /// In steps of 50 ms: each request takes one.
  void pass(Time time) {
    for (const Time end = now_ + time; now_ < end;) {
      now_ += 50ms;
      for (Node& node : nodes_) {
        if (!node.alive) continue;
        if (auto request = std::exchange(node.asked, std::nullopt)) {
          const std::string body =
              etcd_is_up_ && node.reaches_etcd ? etcd_.answer(*request, seconds()) : std::string();
          perform(node, body.empty() ? node.leadership->on_failure("no answer", now_)
                                     : node.leadership->on_reply(body, now_));
        }
        if (node.leadership->next_deadline() <= now_) perform(node, node.leadership->on_time(now_));
      }
    }
  }
  /// Whether a node hears its coordinator.
  void touch(Node& node, bool in_touch) {
    perform(node, node.leadership->on_touch(in_touch, now_));
  }
  void keep(Node& node, const std::string& record, std::uint64_t number) {
    perform(node, node.leadership->keep(record, number, now_));
  }
  void resign(Node& node) { perform(node, node.leadership->resign(now_)); }
  int leaders() const {
    return static_cast<int>(std::ranges::count_if(
        nodes_, [](const Node& node) { return node.alive && node.leadership->leads(); }));
  }
  FakeEtcd& etcd() { return etcd_; }
  void set_etcd(bool is_up) { etcd_is_up_ = is_up; }
  double seconds() const { return std::chrono::duration<double>(now_).count(); }

 private:
  static void perform(Node& node, Leadership::Actions actions) {
    for (LeadershipAction& action : actions) {
      if (auto* ask = std::get_if<AskEtcd>(&action)) {
        EXPECT_FALSE(node.asked) << "two requests at once";
        node.asked = ask->request;
      }
      if (auto* lead = std::get_if<Lead>(&action)) node.led.push_back(*lead);
      if (auto* follow = std::get_if<Follow>(&action)) node.followed.push_back(*follow);
      if (auto* kept = std::get_if<RecordKept>(&action)) node.kept.push_back(kept->number);
      if (auto* says = std::get_if<LeadershipSays>(&action)) node.said += says->text + "\n";
    }
  }

  std::deque<Node> nodes_;
  FakeEtcd etcd_;
  bool etcd_is_up_ = true;
  Time now_ = 1000s;
};

}  // namespace

TEST(Leadership, one_of_several_leads_and_the_others_follow) {
  World world;
  auto &a = world.add("a"), &b = world.add("b"), &c = world.add("c");
  world.pass(2s);
  EXPECT_EQ(world.leaders(), 1);
  EXPECT_EQ(a.led.size() + b.led.size() + c.led.size(), 1u);
  EXPECT_EQ(a.followed.size() + b.followed.size() + c.followed.size(), 2u);
  world.pass(60s);
  EXPECT_EQ(world.leaders(), 1) << "the lease is kept";
  EXPECT_EQ(a.led.size() + b.led.size() + c.led.size(), 1u);
}

TEST(Leadership, a_leader_that_dies_is_followed_by_another_with_its_record) {
  World world;
  auto &a = world.add("a"), &b = world.add("b");
  world.pass(1s);
  ASSERT_TRUE(a.leadership->leads());
  world.touch(b, true);
  world.keep(a, "the record", 1);
  world.pass(1s);
  EXPECT_EQ(a.kept, std::vector<std::uint64_t>{1});
  a.alive = false;
  world.touch(b, false);
  world.pass(2s);
  EXPECT_TRUE(b.led.empty()) << "before the lease is over";
  world.pass(3s);
  ASSERT_EQ(b.led.size(), 1u);
  EXPECT_EQ(b.led[0].term, 2u);
  EXPECT_EQ(b.led[0].record, "the record");
}

TEST(Leadership, a_record_counts_as_kept_when_it_is_that_very_one) {
  World world;
  auto& a = world.add("a");
  world.pass(2s);
  world.keep(a, "first", 1);
  world.keep(a, "second", 2);  // while the first is under way
  world.pass(50ms);
  for (const std::uint64_t number : a.kept) {
    const std::string& text = world.etcd().value("/lockstep/job/record");
    EXPECT_NE(text.find(number == 1 ? "first" : "second"), std::string::npos);
  }
  world.pass(1s);
  EXPECT_EQ(a.kept.back(), 2u);
  EXPECT_NE(world.etcd().value("/lockstep/job/record").find("second"), std::string::npos);
}

TEST(Leadership, a_record_that_is_served_late_does_not_replace_a_later_one) {
  World world;
  auto& a = world.add("a");
  world.pass(1s);
  ASSERT_TRUE(a.leadership->leads());
  while (a.asked) world.pass(50ms);
  world.keep(a, "the first", 1);
  ASSERT_TRUE(a.asked);
  const EtcdRequest late = *a.asked;
  world.set_etcd(false);  // it stalls, and the request lies there
  world.pass(100ms);
  world.set_etcd(true);
  world.keep(a, "the second", 2);
  world.pass(5s);
  ASSERT_EQ(a.kept.back(), 2u);
  world.etcd().answer(late, world.seconds());
  EXPECT_TRUE(world.etcd().value("/lockstep/job/record").ends_with("the second"));
  // Had it come before, the leader would have tried again.
  world.keep(a, "the third", 3);
  world.pass(5s);
  EXPECT_EQ(a.kept.back(), 3u);
}

TEST(Leadership, who_hears_its_coordinator_does_not_take_its_key) {
  World world;
  auto &a = world.add("a"), &b = world.add("b");
  world.pass(1s);
  world.touch(b, true);
  a.reaches_etcd = false;  // its lease runs out
  world.pass(20s);
  EXPECT_TRUE(b.led.empty());
  EXPECT_TRUE(a.leadership->leads());
  EXPECT_NE(a.said.find("etcd cannot be asked (no answer)"), std::string::npos);
  a.reaches_etcd = true;
  world.pass(3s);
  EXPECT_NE(a.said.find("the coordinator's key is in etcd again"), std::string::npos);
  EXPECT_TRUE(world.etcd().has("/lockstep/job/coordinator", world.seconds()));
  EXPECT_EQ(a.led.size(), 1u);
  EXPECT_EQ(a.leadership->term(), 1u);
}

TEST(Leadership, a_leader_that_was_cut_off_gives_up_and_keeps_no_record_meanwhile) {
  World world;
  auto &a = world.add("a"), &b = world.add("b");
  world.pass(1s);
  a.reaches_etcd = false;
  world.touch(b, false);
  world.pass(6s);
  ASSERT_TRUE(b.leadership->leads());
  EXPECT_TRUE(a.leadership->leads()) << "it cannot know";
  world.keep(a, "two at once", 7);
  world.keep(b, "the record", 1);
  world.pass(2s);
  EXPECT_TRUE(a.kept.empty());
  a.reaches_etcd = true;
  world.pass(3s);
  EXPECT_FALSE(a.leadership->leads());
  EXPECT_TRUE(a.kept.empty());
  ASSERT_EQ(a.followed.size(), 1u);
  EXPECT_EQ(a.followed[0].leader.id, "b");
  EXPECT_EQ(a.followed[0].leader.term, 2u);
  EXPECT_NE(world.etcd().value("/lockstep/job/record").find("the record"), std::string::npos);
}

TEST(Leadership, a_leader_does_not_come_back_after_a_later_one_that_is_gone) {
  World world;
  auto &a = world.add("a"), &b = world.add("b");
  world.pass(1s);
  a.reaches_etcd = false;
  world.touch(b, false);
  world.pass(6s);
  world.keep(b, "of term 2", 1);
  world.pass(1s);
  ASSERT_EQ(b.kept.size(), 1u);
  b.alive = false;
  world.pass(5s);  // its key goes with it
  a.reaches_etcd = true;
  world.pass(5s);
  EXPECT_NE(a.said.find("etcd knows of a later coordinator (term 2)"), std::string::npos);
  ASSERT_EQ(a.led.size(), 2u);
  EXPECT_EQ(a.led[1].term, 3u);
  EXPECT_EQ(a.led[1].record, "of term 2");
}

TEST(Leadership, etcd_may_be_away_and_come_back_with_or_without_its_data) {
  for (const bool loses_data : {false, true}) {
    World world;
    auto &a = world.add("a"), &b = world.add("b");
    world.pass(1s);
    world.touch(b, true);
    world.keep(a, "first", 1);
    world.pass(1s);
    world.set_etcd(false);
    world.keep(a, "second", 2);
    world.pass(30s);
    EXPECT_EQ(a.kept, std::vector<std::uint64_t>{1});
    if (loses_data) world.etcd().lose_data();
    world.set_etcd(true);
    world.pass(5s);
    EXPECT_EQ(world.leaders(), 1);
    EXPECT_TRUE(a.leadership->leads());
    EXPECT_EQ(a.kept.back(), 2u) << loses_data;
    EXPECT_NE(a.said.find("etcd answers again"), std::string::npos);
    EXPECT_NE(world.etcd().value("/lockstep/job/record").find("second"), std::string::npos);
    a.alive = false;
    world.touch(b, false);
    world.pass(6s);
    ASSERT_TRUE(b.leadership->leads());
    EXPECT_EQ(b.led[0].term, 2u);
    EXPECT_EQ(b.led[0].record, "second");
  }
}

TEST(Leadership, in_an_etcd_without_its_data_the_key_of_another_is_not_taken_for_ones_own) {
  World world;
  auto& a = world.add("a");
  world.pass(1s);
  ASSERT_TRUE(a.leadership->leads());
  a.reaches_etcd = false;
  world.keep(a, "of a", 1);
  world.pass(2s);
  world.etcd().lose_data();
  auto& b = world.add("b");  // its key has the revision that a's had
  world.pass(2s);
  ASSERT_TRUE(b.leadership->leads());
  a.reaches_etcd = true;
  world.pass(5s);
  EXPECT_EQ(world.leaders(), 1);
  EXPECT_TRUE(a.kept.empty()) << "under the key of b";
}

TEST(Leadership, a_node_without_memory_does_not_win_against_a_later_term) {
  World world;
  auto& a = world.add("a");
  world.pass(1s);
  a.alive = false;
  auto& b = world.add("b");
  world.pass(6s);
  ASSERT_EQ(b.leadership->term(), 2u);
  // All of etcd is lost, and a node that knows nothing is faster than the leader.
  b.reaches_etcd = false;
  world.etcd().lose_data();
  auto& c = world.add("c");
  world.pass(2s);
  ASSERT_TRUE(c.leadership->leads());
  EXPECT_EQ(c.leadership->term(), 1u);
  b.reaches_etcd = true;
  world.pass(5s);
  EXPECT_TRUE(b.leadership->leads());
  EXPECT_FALSE(c.leadership->leads());
  EXPECT_EQ(c.followed.back().leader.id, "b");
}

TEST(Leadership, what_was_not_signed_with_the_secret_is_not_believed) {
  World world;
  LeaderKeys forger{.prefix = "/lockstep", .run_id = "job", .secret = "guessed"};
  world.etcd().put("/lockstep/job/coordinator",
                   forger.seal("/lockstep/job/coordinator",
                               to_json(Leader{9, "evil", "evil", "10.6.6.6", 666})));
  world.etcd().put("/lockstep/job/record", "unsigned\nevil");
  auto& a = world.add("a");
  world.pass(2s);
  EXPECT_TRUE(a.followed.empty());
  ASSERT_EQ(a.led.size(), 1u);
  EXPECT_EQ(a.led[0].record, "");
  EXPECT_NE(a.said.find("was not written with this job's secret"), std::string::npos);
}

TEST(Leadership, a_job_that_is_over_leaves_its_end_in_etcd_for_a_while) {
  World world;
  auto &a = world.add("a"), &b = world.add("b");
  world.pass(1s);
  world.keep(a, "the record", 1);
  world.pass(1s);
  world.resign(b);
  world.resign(a);
  world.pass(1s);
  EXPECT_TRUE(a.leadership->resigned());
  EXPECT_TRUE(b.leadership->resigned());
  EXPECT_FALSE(world.etcd().has("/lockstep/job/coordinator", world.seconds()));
  auto& late = world.add("late");
  world.pass(2s);
  ASSERT_EQ(late.led.size(), 1u);
  EXPECT_EQ(late.led[0].record, "the record");
  late.alive = false;
  world.pass(11min);
  EXPECT_FALSE(world.etcd().has("/lockstep/job/record", world.seconds()));
}

TEST(Leadership, the_end_is_left_in_etcd_after_an_answer_that_was_lost_too) {
  World world;
  auto& a = world.add("a");
  world.pass(1s);
  world.keep(a, "the record", 1);
  world.pass(1s);
  world.set_etcd(false);
  while (a.leadership->trouble().empty()) world.pass(50ms);
  world.set_etcd(true);
  world.resign(a);
  world.pass(1s);
  EXPECT_TRUE(a.leadership->resigned());
  EXPECT_FALSE(world.etcd().has("/lockstep/job/coordinator", world.seconds()));
  EXPECT_TRUE(world.etcd().has("/lockstep/job/record", world.seconds()));
  world.pass(11min);
  EXPECT_FALSE(world.etcd().has("/lockstep/job/record", world.seconds()));
}

TEST(Leadership, without_etcd_a_job_that_is_over_ends) {
  World world;
  auto& a = world.add("a");
  world.pass(1s);
  world.set_etcd(false);
  world.resign(a);
  world.pass(2s);
  EXPECT_TRUE(a.leadership->resigned());
}

TEST(LeaderKeys, a_sealed_value_belongs_to_its_key_and_job) {
  const LeaderKeys keys{.prefix = "/lockstep", .run_id = "job", .secret = "secret"};
  const LeaderKeys other{.prefix = "/lockstep", .run_id = "other", .secret = "secret"};
  const std::string value = keys.seal(keys.record(), "text");
  EXPECT_EQ(keys.open(keys.record(), value), "text");
  EXPECT_FALSE(keys.open(keys.leader(), value));
  EXPECT_FALSE(other.open(other.record(), value));
  EXPECT_FALSE(keys.open(keys.record(), "unsigned\ntext"));
  EXPECT_FALSE(keys.open(keys.record(), ""));
}

}  // namespace lockstep
