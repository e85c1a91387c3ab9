#include "control/store_arrival.h"

#include <gtest/gtest.h>

using lockstep::is_arrival_key;
using lockstep::ranks_not_arrived;
using lockstep::StoreTraces;

namespace {

using Ranks = std::vector<int>;

StoreTraces traces(std::vector<std::string> present, std::vector<std::string> awaited = {}) {
  return {
      .arrival_keys = std::move(present), .awaited_keys = std::move(awaited), .any_client = true};
}

}  // namespace

TEST(StoreArrival, knows_the_keys_of_gloo_and_of_this_library) {
  EXPECT_TRUE(is_arrival_key("/default_pg/0//cpu//0/17"));
  EXPECT_TRUE(is_arrival_key("/lockstep/arrived/3"));
  EXPECT_TRUE(is_arrival_key("/epoch_2/lockstep/arrived/3"));
  EXPECT_FALSE(is_arrival_key("/default_pg/0//cpu//1/17"));
  EXPECT_FALSE(is_arrival_key("/default_pg/0//1//cpu//0/17"));
  EXPECT_FALSE(is_arrival_key("/default_pg/0//cpu//0/"));
  EXPECT_FALSE(is_arrival_key("/default_pg/0//cpu//0/-1"));
  EXPECT_FALSE(is_arrival_key("/epoch_/lockstep/arrived/3"));
  EXPECT_FALSE(is_arrival_key("/epoch_7"));
  EXPECT_FALSE(is_arrival_key("/weights"));
}

TEST(StoreArrival, names_ranks_without_a_key) {
  EXPECT_EQ(ranks_not_arrived(traces({"/default_pg/0//cpu//0/1", "/default_pg/0//cpu//0/2"}), 4),
            (Ranks{0, 3}));
}

TEST(StoreArrival, nobody_is_missing_when_all_keys_are_there) {
  EXPECT_EQ(ranks_not_arrived(traces({"/lockstep/arrived/0", "/lockstep/arrived/1"}), 2), Ranks{});
}

TEST(StoreArrival, ranks_of_both_languages_count) {
  EXPECT_EQ(ranks_not_arrived(traces({"/default_pg/0//cpu//0/1", "/lockstep/arrived/0"}), 3),
            (Ranks{2}));
}

TEST(StoreArrival, nobody_has_come_where_there_is_no_client) {
  EXPECT_EQ(ranks_not_arrived({}, 3), (Ranks{0, 1, 2}));
}

TEST(StoreArrival, waiting_for_the_id_of_nccl_is_waiting_for_rank_0) {
  EXPECT_EQ(ranks_not_arrived(traces({}, {"/default_pg/0//cuda//0"}), 4), (Ranks{0}));
}

TEST(StoreArrival, a_program_without_groups_tells_nothing) {
  EXPECT_EQ(ranks_not_arrived(traces({}, {"/weights"}), 4), std::nullopt);
}

TEST(StoreArrival, a_rank_outside_the_world_is_passed_over) {
  EXPECT_EQ(ranks_not_arrived(traces({"/default_pg/0//cpu//0/9"}), 2), (Ranks{0, 1}));
}
