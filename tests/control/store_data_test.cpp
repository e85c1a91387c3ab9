#include "control/store_data.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/store_wire.h"

using lockstep::StoreClientId;
using lockstep::StoreCommand;
using lockstep::StoreData;
using lockstep::StoreDataLimits;
using lockstep::StoreOutcome;
using lockstep::StoreRequest;
namespace wire = lockstep::wire;

namespace {

using Texts = std::vector<std::string_view>;
using Replies = std::map<StoreClientId, std::string>;

const std::string kReady(1, '\0'), kNotReady(1, '\1');
const std::string kStop(1, '\0'), kCancelled(1, '\1');

// A store whose answers are told per client.
struct Store {
  explicit Store(StoreDataLimits limits = {}) : data(limits) {}

  Replies run(StoreClientId client, StoreCommand command, const Texts& texts = {},
              std::int64_t number = 0) {
    const StoreOutcome outcome =
        data.execute(client, {.command = command, .texts = texts, .number = number});
    problem = outcome.problem;
    Replies replies;
    for (const auto& reply : outcome.replies) replies[reply.client] += reply.bytes;
    return replies;
  }

  // The answer to the one who asked, where nobody else gets one.
  std::string ask(StoreCommand command, const Texts& texts = {}, std::int64_t number = 0) {
    const Replies replies = run(1, command, texts, number);
    EXPECT_LE(replies.size(), 1u);
    return replies.empty() ? "" : replies.begin()->second;
  }

  bool has(std::string_view key) { return ask(StoreCommand::check, {key}) == kReady; }
  std::string get(std::string_view key) { return ask(StoreCommand::get, {key}); }

  StoreData data;
  std::string problem;
};

}  // namespace

TEST(StoreData, set_values_can_be_read_and_are_not_acknowledged) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::set, {"/k", std::string_view("a\0b", 3)}), "");
  EXPECT_EQ(store.get("/k"), wire::text(std::string_view("a\0b", 3)));
  EXPECT_EQ(store.get("/absent"), wire::text(""));
}

TEST(StoreData, compare_set_of_an_absent_key_sets_it_only_if_nothing_was_expected) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::compare_set, {"/k", "old", "new"}), wire::text("old"));
  EXPECT_FALSE(store.has("/k"));
  EXPECT_EQ(store.ask(StoreCommand::compare_set, {"/k", "", "new"}), wire::text("new"));
  EXPECT_TRUE(store.has("/k"));
}

TEST(StoreData, compare_set_replaces_an_equal_value_and_tells_another) {
  Store store;
  store.ask(StoreCommand::set, {"/k", "a"});
  EXPECT_EQ(store.ask(StoreCommand::compare_set, {"/k", "x", "b"}), wire::text("a"));
  EXPECT_EQ(store.ask(StoreCommand::compare_set, {"/k", "a", "b"}), wire::text("b"));
  EXPECT_EQ(store.get("/k"), wire::text("b"));
  store.ask(StoreCommand::set, {"/empty", ""});
  EXPECT_EQ(store.ask(StoreCommand::compare_set, {"/empty", "", "c"}), wire::text("c"));
}

TEST(StoreData, compare_set_wakes_those_who_wait_only_when_it_writes) {
  Store store;
  EXPECT_EQ(store.run(2, StoreCommand::wait, {"/k"}), Replies{});
  EXPECT_EQ(store.run(1, StoreCommand::compare_set, {"/k", "x", "y"}),
            (Replies{{1, wire::text("x")}}));
  EXPECT_EQ(store.run(1, StoreCommand::compare_set, {"/k", "", "y"}),
            (Replies{{1, wire::text("y")}, {2, kStop}}));
}

TEST(StoreData, add_counts_in_decimal_text) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::add, {"/n"}, 5), wire::integer<std::int64_t>(5));
  EXPECT_EQ(store.ask(StoreCommand::add, {"/n"}, -7), wire::integer<std::int64_t>(-2));
  EXPECT_EQ(store.get("/n"), wire::text("-2"));
}

TEST(StoreData, add_reads_numbers_as_stoll_does) {
  Store store;
  store.ask(StoreCommand::set, {"/n", "  12abc"});
  EXPECT_EQ(store.ask(StoreCommand::add, {"/n"}, 1), wire::integer<std::int64_t>(13));
  for (const std::string_view bad : {"", "abc", "99999999999999999999"}) {
    store.ask(StoreCommand::set, {"/n", bad});
    EXPECT_EQ(store.ask(StoreCommand::add, {"/n"}, 1), "");
    EXPECT_EQ(store.problem, "ADD to /n, whose value is no number");
    EXPECT_EQ(store.get("/n"), wire::text(bad));
  }
}

TEST(StoreData, add_wraps_around) {
  Store store;
  store.ask(StoreCommand::add, {"/n"}, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(store.ask(StoreCommand::add, {"/n"}, 1),
            wire::integer(std::numeric_limits<std::int64_t>::min()));
}

TEST(StoreData, append_makes_and_lengthens_values) {
  Store store;
  store.ask(StoreCommand::append, {"/a", "ab"});
  store.ask(StoreCommand::append, {"/a", "c"});
  EXPECT_EQ(store.get("/a"), wire::text("abc"));
}

TEST(StoreData, delete_tells_how_many_and_leaves_queues_and_waits_alone) {
  Store store;
  store.ask(StoreCommand::queue_push, {"/k", "e"});
  store.run(2, StoreCommand::wait, {"/absent"});
  EXPECT_EQ(store.ask(StoreCommand::delete_key, {"/k"}), wire::integer<std::int64_t>(0));
  EXPECT_EQ(store.ask(StoreCommand::delete_key, {"/absent"}), wire::integer<std::int64_t>(0));
  store.ask(StoreCommand::set, {"/k", "v"});
  EXPECT_EQ(store.ask(StoreCommand::delete_key, {"/k"}), wire::integer<std::int64_t>(1));
  EXPECT_EQ(store.ask(StoreCommand::queue_length, {"/k"}), wire::integer<std::int64_t>(1));
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/absent", ""}), (Replies{{2, kStop}}));
}

TEST(StoreData, check_wants_all_keys_and_is_content_with_none) {
  Store store;
  store.ask(StoreCommand::set, {"/a", ""});
  EXPECT_EQ(store.ask(StoreCommand::check, {"/a"}), kReady);
  EXPECT_EQ(store.ask(StoreCommand::check, {"/a", "/b"}), kNotReady);
  EXPECT_EQ(store.ask(StoreCommand::check, {}), kReady);
}

TEST(StoreData, multi_commands_go_key_by_key) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::multi_set, {"/a", "1", "/b", "22"}), "");
  EXPECT_EQ(store.ask(StoreCommand::multi_get, {"/b", "/absent", "/a"}),
            wire::text("22") + wire::text("") + wire::text("1"));
  EXPECT_EQ(store.ask(StoreCommand::multi_get, {}), "");
}

TEST(StoreData, keys_are_counted_and_listed_without_queues) {
  Store store;
  store.ask(StoreCommand::set, {"/k", "v"});
  store.ask(StoreCommand::add, {"init/"}, 1);
  store.ask(StoreCommand::queue_push, {"/q", "e"});
  EXPECT_EQ(store.ask(StoreCommand::number_of_keys), wire::integer<std::int64_t>(2));
  const std::string count = wire::integer<std::int64_t>(2);
  const std::string one = wire::text("/k"), other = wire::text("init/");
  const std::string listed = store.ask(StoreCommand::list_keys);
  EXPECT_TRUE(listed == count + one + other || listed == count + other + one);
}

TEST(StoreData, ping_comes_back) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::ping, {}, 0xfedcba98),
            wire::integer<std::uint32_t>(0xfedcba98));
}

TEST(StoreData, wait_is_answered_at_once_where_all_is_there) {
  Store store;
  store.ask(StoreCommand::set, {"/a", "1"});
  EXPECT_EQ(store.ask(StoreCommand::wait, {"/a"}), kStop);
  EXPECT_EQ(store.ask(StoreCommand::wait, {}), kStop);
}

TEST(StoreData, wait_ends_with_the_last_of_its_keys) {
  Store store;
  EXPECT_EQ(store.run(2, StoreCommand::wait, {"/a", "/b", "/a"}), Replies{});
  EXPECT_EQ(store.data.awaited_keys(2), (std::vector<std::string>{"/a", "/b", "/a"}));
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/a", ""}), Replies{});
  EXPECT_EQ(store.data.awaited_keys(2), (std::vector<std::string>{"/b"}));
  EXPECT_EQ(store.run(1, StoreCommand::append, {"/b", "x"}), (Replies{{2, kStop}}));
  EXPECT_EQ(store.data.awaited_keys(2), std::vector<std::string>{});
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/b", "y"}), Replies{}) << "one answer to one wait";
}

TEST(StoreData, every_writing_command_wakes_all_who_wait) {
  const std::vector<std::pair<StoreCommand, Texts>> writes = {
      {StoreCommand::set, {"/k", "1"}},
      {StoreCommand::append, {"/k", "1"}},
      {StoreCommand::add, {"/k"}},
      {StoreCommand::multi_set, {"/other", "1", "/k", "1"}},
      {StoreCommand::compare_set, {"/k", "", "1"}},
  };
  for (const auto& [command, texts] : writes) {
    Store store;
    for (const StoreClientId client : {2, 3}) store.run(client, StoreCommand::wait, {"/k"});
    Replies replies = store.run(1, command, texts, 1);
    replies.erase(1);
    EXPECT_EQ(replies, (Replies{{2, kStop}, {3, kStop}})) << name_of(command);
  }
}

TEST(StoreData, multi_set_is_answered_once_to_one_who_waits_for_several_of_its_keys) {
  Store store;
  store.run(2, StoreCommand::wait, {"/a", "/b"});
  EXPECT_EQ(store.run(1, StoreCommand::multi_set, {"/a", "", "/b", ""}), (Replies{{2, kStop}}));
}

TEST(StoreData, cancel_is_answered_also_where_nothing_was_awaited) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::cancel_wait), kCancelled);
  store.run(2, StoreCommand::wait, {"/k"});
  EXPECT_EQ(store.run(2, StoreCommand::cancel_wait), (Replies{{2, kCancelled}}));
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/k", ""}), Replies{});
}

TEST(StoreData, a_new_wait_takes_the_place_of_an_unfinished_one) {
  Store store;
  store.run(2, StoreCommand::wait, {"/a"});
  store.run(2, StoreCommand::wait, {"/b"});
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/a", ""}), Replies{});
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/b", ""}), (Replies{{2, kStop}}));
}

TEST(StoreData, a_client_that_is_gone_gets_no_answer) {
  Store store;
  store.run(2, StoreCommand::wait, {"/k", "/l"});
  store.run(3, StoreCommand::wait, {"/k"});
  store.data.remove_client(2);
  EXPECT_EQ(store.run(1, StoreCommand::multi_set, {"/k", "", "/l", ""}), (Replies{{3, kStop}}));
}

TEST(StoreData, queues_are_first_in_first_out_and_tell_the_length_before_a_pop) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::queue_push, {"/q", "a"}), "");
  store.ask(StoreCommand::queue_push, {"/q", "b"});
  EXPECT_EQ(store.ask(StoreCommand::queue_length, {"/q"}), wire::integer<std::int64_t>(2));
  EXPECT_EQ(store.ask(StoreCommand::queue_pop, {"/q"}),
            wire::integer<std::int64_t>(2) + wire::text("a"));
  EXPECT_EQ(store.ask(StoreCommand::queue_pop, {"/q"}),
            wire::integer<std::int64_t>(1) + wire::text("b"));
  EXPECT_EQ(store.ask(StoreCommand::queue_pop, {"/q"}), wire::integer<std::int64_t>(0));
}

TEST(StoreData, a_queue_is_present_while_something_is_in_it) {
  Store store;
  store.ask(StoreCommand::queue_push, {"/q", ""});
  EXPECT_TRUE(store.has("/q"));
  EXPECT_EQ(store.ask(StoreCommand::wait, {"/q"}), kStop);
  store.ask(StoreCommand::queue_pop, {"/q"});
  EXPECT_FALSE(store.has("/q"));
}

TEST(StoreData, a_push_wakes_one_client_in_order_of_arrival) {
  Store store;
  for (const StoreClientId client : {3, 2}) store.run(client, StoreCommand::wait, {"/q"});
  EXPECT_EQ(store.run(1, StoreCommand::queue_push, {"/q", "a"}), (Replies{{3, kStop}}));
  EXPECT_EQ(store.run(1, StoreCommand::queue_push, {"/q", "b"}), (Replies{{2, kStop}}));
}

TEST(StoreData, a_push_passes_by_clients_that_need_more_than_the_queue) {
  Store store;
  store.run(2, StoreCommand::wait, {"/q", "/k"});
  store.run(3, StoreCommand::wait, {"/q"});
  EXPECT_EQ(store.run(1, StoreCommand::queue_push, {"/q", "a"}), (Replies{{3, kStop}}));
  EXPECT_EQ(store.run(1, StoreCommand::set, {"/k", ""}), (Replies{{2, kStop}}));
}

TEST(StoreData, a_push_does_not_wake_who_once_waited_for_the_queue) {
  Store store;
  store.run(2, StoreCommand::wait, {"/q"});
  store.run(2, StoreCommand::cancel_wait);
  store.run(2, StoreCommand::wait, {"/x"});
  EXPECT_EQ(store.run(1, StoreCommand::queue_push, {"/q", "a"}), Replies{});
}

TEST(StoreData, a_barrier_opens_for_all_with_the_last_client) {
  Store store;
  EXPECT_EQ(store.run(1, StoreCommand::barrier, {"/bar"}, 3), Replies{});
  EXPECT_TRUE(store.has("/bar"));
  EXPECT_EQ(store.run(2, StoreCommand::barrier, {"/bar"}, 3), Replies{});
  EXPECT_EQ(store.data.awaited_keys(2), (std::vector<std::string>{"/bar"}));
  EXPECT_EQ(store.run(3, StoreCommand::barrier, {"/bar"}, 3),
            (Replies{{1, kStop}, {2, kStop}, {3, kStop}}));
  EXPECT_EQ(store.run(4, StoreCommand::barrier, {"/bar"}, 3), (Replies{{4, kStop}}))
      << "it is for one use";
}

TEST(StoreData, a_barrier_of_one_or_less_opens_at_once) {
  Store store;
  EXPECT_EQ(store.ask(StoreCommand::barrier, {"/one"}, 1), kStop);
  EXPECT_EQ(store.ask(StoreCommand::barrier, {"/none"}, -5), kStop);
}

TEST(StoreData, a_wait_made_before_a_barrier_ends_with_it) {
  Store store;
  store.run(9, StoreCommand::wait, {"/bar"});
  EXPECT_EQ(store.run(1, StoreCommand::barrier, {"/bar"}, 2), Replies{});
  EXPECT_EQ(store.run(2, StoreCommand::barrier, {"/bar"}, 2),
            (Replies{{1, kStop}, {2, kStop}, {9, kStop}}));
}

TEST(StoreData, a_set_opens_a_barrier) {
  Store store;
  store.run(1, StoreCommand::barrier, {"/bar"}, 2);
  EXPECT_EQ(store.run(3, StoreCommand::set, {"/bar", "7"}), (Replies{{1, kStop}}));
}

TEST(StoreData, a_barrier_at_a_value_that_is_no_number_is_refused) {
  Store store;
  store.ask(StoreCommand::set, {"/bar", "x"});
  EXPECT_EQ(store.ask(StoreCommand::barrier, {"/bar"}, 2), "");
  EXPECT_EQ(store.problem, "BARRIER at /bar, whose value is no number");
}

TEST(StoreData, what_would_not_fit_is_refused_whole) {
  Store store({.bytes = 1000});
  const std::string half(400, 'v');
  store.ask(StoreCommand::set, {"/a", half});
  EXPECT_EQ(store.problem, "");
  store.ask(StoreCommand::multi_set, {"/b", "1", "/c", half});
  EXPECT_NE(store.problem.find("MULTI_SET would make the store larger than 1000 bytes"),
            std::string::npos);
  EXPECT_FALSE(store.has("/b"));
  for (const StoreCommand command :
       {StoreCommand::append, StoreCommand::set, StoreCommand::queue_push}) {
    store.ask(command, {"/a", half});
    EXPECT_NE(store.problem, "") << name_of(command);
  }
  const std::string long_key(400, 'k');
  store.ask(StoreCommand::wait, {long_key});
  EXPECT_NE(store.problem, "") << "awaited keys take memory too";
  store.ask(StoreCommand::delete_key, {"/a"});
  store.ask(StoreCommand::set, {"/c", half});
  EXPECT_EQ(store.problem, "");
}

TEST(StoreData, all_bytes_are_given_back_with_what_held_them) {
  Store store;
  EXPECT_EQ(store.data.bytes(), 0u);
  store.ask(StoreCommand::set, {"/k", "long value"});
  store.ask(StoreCommand::set, {"/k", "v"});
  store.ask(StoreCommand::append, {"/k", "w"});
  store.ask(StoreCommand::add, {"/n"}, 99);
  store.run(2, StoreCommand::barrier, {"/bar"}, 2);
  store.run(1, StoreCommand::barrier, {"/bar"}, 2);
  store.ask(StoreCommand::queue_push, {"/q", "e"});
  store.ask(StoreCommand::queue_push, {"/q", "f"});
  store.run(2, StoreCommand::wait, {"/x", "/y", "/x"});
  store.run(3, StoreCommand::wait, {"/x", "/z"});
  store.run(1, StoreCommand::set, {"/x", ""});
  EXPECT_GT(store.data.bytes(), 0u);
  for (const StoreClientId client : {2, 3}) store.data.remove_client(client);
  for (const std::string_view key : {"/k", "/n", "/bar", "/x"}) {
    store.ask(StoreCommand::delete_key, {key});
  }
  for (int i = 0; i < 2; ++i) store.ask(StoreCommand::queue_pop, {"/q"});
  EXPECT_EQ(store.data.bytes(), 0u);
}

TEST(StoreData, replies_beyond_the_limit_are_refused_before_they_are_made) {
  Store store({.reply_bytes = 100});
  store.ask(StoreCommand::set, {"/long_enough_a_key", std::string(40, 'v')});
  store.ask(StoreCommand::multi_get, {"/long_enough_a_key", "/long_enough_a_key"});
  EXPECT_EQ(store.problem, "");
  store.ask(StoreCommand::multi_get,
            {"/long_enough_a_key", "/long_enough_a_key", "/long_enough_a_key"});
  EXPECT_EQ(store.problem, "MULTI_GET asks for 144 bytes; the limit is 100");
  for (const std::string_view key : {"/long_enough_a_key_2", "/long_enough_a_key_3", "/k4"}) {
    store.ask(StoreCommand::set, {key, ""});
  }
  store.ask(StoreCommand::list_keys);
  EXPECT_NE(store.problem.find("LIST_KEYS asks for"), std::string::npos);
}
