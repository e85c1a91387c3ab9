#include "shard/copy_places.h"

#include <gtest/gtest.h>

using namespace lockstep;

namespace {

// A letter for each rank's machine.
std::vector<std::string> machines_named(const std::string& letters) {
  std::vector<std::string> machines;
  for (const char letter : letters) machines.emplace_back(1, letter);
  return machines;
}

}  // namespace

TEST(CopyPlaces, who_keeps_whose_copy) {
  struct Row {
    CopyPlaces places;
    std::vector<int> keepers;  // by part
  };
  for (const auto& [places, keepers] : {
           Row{{.ranks = 2, .distance = 1}, {1, 0}},
           Row{{.ranks = 3, .distance = 1}, {2, 0, 1}},
           Row{{.ranks = 4, .distance = 1}, {3, 0, 1, 2}},
           Row{{.ranks = 4, .distance = 2}, {2, 3, 0, 1}},
           Row{{.ranks = 6, .distance = 2}, {4, 5, 0, 1, 2, 3}},
           Row{{.ranks = 6, .distance = 3}, {3, 4, 5, 0, 1, 2}},
       }) {
    for (int part = 0; part < places.ranks; ++part) {
      EXPECT_EQ(places.keeper_of(part), keepers[part]) << places.ranks << " " << places.distance;
      EXPECT_EQ(places.copied_at(keepers[part]), part) << places.ranks << " " << places.distance;
    }
  }
}

TEST(CopyPlaces, copies_are_on_other_machines_where_that_can_be) {
  struct Row {
    std::string machines;
    int distance;
    bool apart;
  };
  for (const auto& [letters, distance, apart] : {
           Row{"aa", 1, false},
           Row{"aaaa", 1, false},
           Row{"ab", 1, true},
           Row{"abc", 1, true},
           Row{"aabb", 2, true},
           Row{"aabbcc", 2, true},
           Row{"aaabbb", 3, true},
           Row{"aaaabbbbcccc", 4, true},
           Row{"abab", 1, true},    // not numbered machine by machine
           Row{"aabbb", 1, false},  // a machine with more than half of the ranks
           Row{"aabc", 2, true},
           Row{"aaabbc", 3, true},
           Row{"aaab", 1, false},
       }) {
    const std::vector<std::string> machines = machines_named(letters);
    EXPECT_EQ(distance_apart(machines), distance) << letters;
    const CopyPlaces places{.ranks = static_cast<int>(machines.size()), .distance = distance};
    EXPECT_EQ(places.are_apart(machines), apart) << letters;
  }
}
