#include "train/state_transfer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"
#include "train/replica_vote.h"
#include "train/run_journal.h"
#include "train/state_stream.h"

using namespace lockstep;

namespace {

Snapshot some_state() {
  torch::manual_seed(3);
  Snapshot snapshot{.step = 7, .epoch = 2, .slots = 3, .seed = 11};
  State& model = snapshot.parts["model"];
  model.tensors["large"] = torch::randn({1500, 1100});  // more than one chunk
  model.tensors["tied"] = model.tensors["large"];
  model.tensors["half"] = torch::randn({33}).to(torch::kBFloat16);
  model.tensors["index"] = torch::arange(5);
  model.tensors["none"] = torch::empty({0, 4});
  model.tensors["turned"] = torch::randn({40, 30}).t();
  State& watch = snapshot.parts["watch"];
  watch.values = {{"best", std::numeric_limits<double>::infinity()}, {"step", 5}};
  watch.tensors["number"] = torch::full({}, 0.1, torch::kDouble);
  return snapshot;
}

}  // namespace

namespace {

// Ranks `givers` hand some_state() to `takers`; true where it arrived whole.
bool hand_to(World& world, const std::vector<int>& givers, const std::vector<int>& takers,
             const Snapshot& original, const Snapshot& own = {}) {
  const auto tensors = distinct_tensors(original);
  const Transfer transfer{.givers = givers, .takers = takers, .bytes = total_bytes(tensors)};
  if (std::ranges::count(takers, world.rank()) == 0) {
    if (sends(world.rank(), world.group(), transfer)) {
      send_tensors(world.group(), transfer, tensors);
    }
    return true;
  }
  const Snapshot arrived = allocate_state(describe_state(original), own);
  receive_tensors(world.group(), transfer, distinct_tensors(arrived));
  EXPECT_EQ(arrived.step, original.step);
  EXPECT_EQ(arrived.slots, original.slots);
  EXPECT_EQ(arrived.seed, original.seed);
  for (const auto& [part, state] : original.parts) {
    EXPECT_EQ(arrived.parts.at(part).values, state.values);
    for (const auto& [name, tensor] : state.tensors) {
      EXPECT_TRUE(torch::equal(arrived.parts.at(part).tensors.at(name), tensor)) << name;
    }
  }
  return state_checksum(arrived) == state_checksum(original);
}

Snapshot large_state() {
  Snapshot snapshot;
  // More than kSeveralSendersFrom, and edges that are none of chunks.
  snapshot.parts["model"].tensors["a"] = torch::arange(1 << 22);
  snapshot.parts["model"].tensors["b"] = torch::arange((9 << 20) + 77);
  return snapshot;
}

}  // namespace

RANKS_TEST(StateTransfer, brings_every_bit_to_those_who_ask_and_only_to_them, 3) {
  World world = init();
  EXPECT_TRUE(hand_to(world, {1}, {2}, some_state()));
  const Snapshot arrived = allocate_state(describe_state(some_state()));
  const auto& model = arrived.parts.at("model").tensors;
  EXPECT_TRUE(model.at("tied").is_same(model.at("large")));
  world.barrier();
}

RANKS_TEST(StateTransfer, comes_from_several_to_several, 4) {
  World world = init();
  EXPECT_TRUE(hand_to(world, {0, 3}, {1, 2}, large_state()));
  EXPECT_TRUE(hand_to(world, {1, 2, 3}, {0}, large_state()));
  world.barrier();
}

RANKS_TEST(StateTransfer, goes_over_connections_where_one_rank_shares_no_memory, 3) {
  World world = init();
  if (world.rank() == 1) setenv("LOCKSTEP_SHM", "0", 1);
  EXPECT_TRUE(hand_to(world, {0, 2}, {1}, large_state()));
  EXPECT_TRUE(hand_to(world, {1, 2}, {0}, large_state()));
  world.barrier();
}

RANKS_TEST(StateTransfer, writes_into_tensors_that_are_there, 2) {
  World world = init();
  const Snapshot original = some_state();
  Snapshot own;
  own.parts["model"].tensors["large"] = torch::zeros({1500, 1100});
  own.parts["model"].tensors["half"] = torch::zeros({33});            // of another type
  own.parts["model"].tensors["turned"] = torch::zeros({40, 30}).t();  // not in a row
  EXPECT_TRUE(hand_to(world, {0}, {1}, original, own));
  if (world.rank() == 1) {
    const auto& wanted = original.parts.at("model").tensors;
    const auto& tensors = own.parts.at("model").tensors;
    EXPECT_TRUE(torch::equal(tensors.at("large"), wanted.at("large")));
    EXPECT_TRUE(torch::equal(tensors.at("turned"), wanted.at("turned")));
    EXPECT_TRUE(torch::equal(tensors.at("half"), torch::zeros({33})));
  }
  world.barrier();
}

RANKS_TEST_WITH(StateTransfer, ends_when_the_sender_dies, {.count = 2, .killed = {0}}) {
  World world = init();
  const Snapshot original = large_state();
  const Transfer transfer{
      .givers = {0}, .takers = {1}, .bytes = total_bytes(distinct_tensors(original))};
  if (world.rank() == 0) {
    // It dies in the middle: the rest of what it was to send is not there.
    auto tensors = distinct_tensors(original);
    tensors.pop_back();
    try {
      send_tensors(world.group(), transfer, tensors);
    } catch (const std::out_of_range&) {
      lockstep::testing::kill_this_process();
    }
  }
  const Snapshot arrived = allocate_state(describe_state(original));
  EXPECT_THROW(receive_tensors(world.group(), transfer, distinct_tensors(arrived)), PeerLost);
}

TEST(StateTransfer, senders_are_near_and_several_for_a_large_state) {
  using Ranks = std::vector<int>;
  const std::vector<std::string> machines = {"a", "a", "b", "b", "", ""};
  EXPECT_EQ(senders_to(1, {0, 2, 3}, machines, 10), Ranks{0});
  EXPECT_EQ(senders_to(2, {0, 1, 3}, machines, kSeveralSendersFrom), Ranks{3});
  EXPECT_EQ(senders_to(2, {0, 1}, machines, kSeveralSendersFrom), (Ranks{0, 1}));
  EXPECT_EQ(senders_to(4, {1, 5}, machines, 10), Ranks{1});  // names that say nothing are no match
}

TEST(RunJournal, keeps_the_last_events_and_their_numbers) {
  RunJournal journal;
  for (std::int64_t step = 1; step <= 20; ++step) {
    journal.add({.kind = RunEvent::Kind::step,
                 .commit = step,
                 .step = step,
                 .report = {.step = step, .grad_norm = 0.1, .loss = std::nan("")},
                 .log = {{"loss", std::nan("")}, {"lr", 0.1}}});
  }
  journal.add({.kind = RunEvent::Kind::evaluation, .commit = 21, .evaluation = {{"eval/x", 0.3}}});
  const auto bytes = nlohmann::json::to_cbor(journal.to_json());
  const auto copy = RunJournal::from_json(nlohmann::json::from_cbor(bytes));
  ASSERT_EQ(copy.events().size(), RunJournal::kKept);
  EXPECT_EQ(copy.events().back().evaluation.at("eval/x"), 0.3);
  const RunEvent& step = copy.events().at(RunJournal::kKept - 2);
  EXPECT_EQ(step.commit, 20);
  EXPECT_EQ(step.report.grad_norm, 0.1);
  EXPECT_TRUE(std::isnan(step.report.loss.value()));
  EXPECT_TRUE(std::isnan(step.log.at("loss").get<double>()));
  EXPECT_EQ(step.log.at("lr").get<double>(), 0.1);
}

TEST(ReplicaVote, finds_those_who_differ_from_most) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(outvoted({"a", "a", "a"}), Ranks{});
  EXPECT_EQ(outvoted({"a", "b", "a"}), Ranks{1});
  EXPECT_EQ(outvoted({"b", "a", "a", "c", "a"}), (Ranks{0, 3}));
}

TEST(ReplicaVote, nobody_is_right_without_more_than_half) {
  EXPECT_EQ(outvoted({"a", "b"}), std::nullopt);
  EXPECT_EQ(outvoted({"a", "a", "b", "b"}), std::nullopt);
  EXPECT_EQ(outvoted({"a", "b", "c"}), std::nullopt);
}

TEST(StateChecksum, any_flipped_bit_changes_it) {
  const Snapshot state = some_state();
  const std::uint64_t before = state_checksum(state);
  for (const auto& [part, each] : state.parts) {
    for (const auto& [name, tensor] : each.tensors) {
      if (tensor.numel() == 0) continue;
      auto* bytes = static_cast<std::uint8_t*>(tensor.mutable_data_ptr());
      bytes[tensor.nbytes() - 1] ^= 1;
      EXPECT_NE(state_checksum(state), before) << name;
      bytes[tensor.nbytes() - 1] ^= 1;
    }
  }
  EXPECT_EQ(state_checksum(state), before);
}
