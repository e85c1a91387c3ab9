#include "train/state_transfer.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/world.h"
#include "tests/support/ranks.h"
#include "train/replica_vote.h"
#include "train/run_journal.h"

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

RANKS_TEST(StateTransfer, brings_every_bit_to_those_who_ask_and_only_to_them, 3) {
  World world = init();
  const bool gives = world.rank() == 1, takes = world.rank() == 2;
  const Snapshot original = some_state();  // the same numbers everywhere, to compare with
  std::string text;
  if (gives) {
    const auto bytes = nlohmann::json::to_cbor(describe_state(original));
    text.assign(bytes.begin(), bytes.end());
  }
  const auto description = nlohmann::json::from_cbor(world.group().broadcast_string(text, 1));
  if (gives) send_tensors(world.group(), original, {2});
  if (takes) {
    const Snapshot arrived = allocate_state(description);
    receive_tensors(world.group(), arrived, 1);
    EXPECT_EQ(arrived.step, 7);
    EXPECT_EQ(arrived.slots, 3);
    EXPECT_EQ(arrived.seed, 11u);
    EXPECT_EQ(arrived.parts.at("watch").values, original.parts.at("watch").values);
    for (const auto& [part, state] : original.parts) {
      for (const auto& [name, tensor] : state.tensors) {
        EXPECT_TRUE(torch::equal(arrived.parts.at(part).tensors.at(name), tensor)) << name;
      }
    }
    const auto& model = arrived.parts.at("model").tensors;
    EXPECT_TRUE(model.at("tied").is_same(model.at("large")));
    EXPECT_EQ(state_checksum(arrived), state_checksum(original));
    model.at("index").add_(1);
    EXPECT_NE(state_checksum(arrived), state_checksum(original));
  }
  world.barrier();
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
