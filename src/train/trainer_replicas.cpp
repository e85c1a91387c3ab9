// How TrainerCore finds a rank whose memory is no longer that of the others: a bit that flipped, a
// kernel that computes wrongly on one device, a callback that changes weights on one rank.
#include <algorithm>
#include <numeric>

#include "comm/recovery.h"
#include "core/checksum.h"
#include "core/rank_list.h"
#include "train/replica_vote.h"
#include "train/state_transfer.h"
#include "train/trainer_core.h"

namespace lockstep {
namespace {

Snapshot tensors_to_compare(const RunState& run, ShardPart part = ShardPart::own) {
  Snapshot state = run.parts({.part = part});
  state.parts["optimizer"].values = nlohmann::json::object();  // the rate is set before each step
  return state;
}

}  // namespace

// Of everything that all ranks have in common.
std::string TrainerCore::fingerprint() const {
  Snapshot state = state_->values(share_, world_.epoch());
  erase_callback_parts(state);  // rank 0's counts
  if (!options_.shard) state.parts.merge(tensors_to_compare(*state_).parts);
  return checksum_text(state_checksum(state));
}

// By part, of what a rank of a sharded run has in common with others that hold the same.
nlohmann::json TrainerCore::part_fingerprints() const {
  nlohmann::json all = nlohmann::json::object();
  if (!options_.shard) return all;
  const PartPlaces places = part_places();
  const int own = places.part_of(world_.rank());
  const auto add = [&](int part, ShardPart which) {
    all[std::to_string(part)] = checksum_text(state_checksum(tensors_to_compare(*state_, which)));
  };
  add(own, ShardPart::own);
  if (places.has_copies()) add(places.copies().copied_at(own), ShardPart::copied);
  return all;
}

bool TrainerCore::compares_after(std::int64_t step) const {
  return options_.verify_every > 0 && step % options_.verify_every == 0 &&
         world_.world_size() > 1 && options_.ddp.ignored.empty() &&
         (!options_.shard || part_places().holders(0).size() > 1);
}

void TrainerCore::compare_replicas() {
  world_.report(state_->position.step, "compare");
  const auto all =
      world_.group().all_gather_json({{"state", fingerprint()}, {"parts", part_fingerprints()}});
  std::vector<int> everyone(all.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  vote(everyone, [&](int rank) { return all[rank].at("state").get<std::string>(); });
  const int parts = options_.shard ? part_places().parts() : 0;
  for (int part = 0; part < parts; ++part) {
    vote(part_places().holders(part), [&](int rank) {
      return all[rank].at("parts").at(std::to_string(part)).get<std::string>();
    });
  }
}

// All ranks call it, with the same fingerprints.
void TrainerCore::vote(const std::vector<int>& ranks,
                       const std::function<std::string(int)>& fingerprint_of) {
  std::vector<std::string> fingerprints;
  for (const int rank : ranks) fingerprints.push_back(fingerprint_of(rank));
  const auto wrong = outvoted(fingerprints);
  if (wrong && wrong->empty()) return;
  const std::int64_t step = state_->position.step;
  if (!wrong) {
    throw Error(concat("step ", step, ": the weights or the optimizer's state are not the same on ",
                       list_ranks(ranks),
                       ", and no state is that of more than half of them. Start the program again: "
                       "it goes on from the newest snapshot"));
  }
  std::vector<int> named;
  for (const int place : *wrong) named.push_back(ranks[static_cast<std::size_t>(place)]);
  reject_replicas(named, concat("step ", step, ": the state of ", list_ranks(named),
                                " is not that of the others"));
}

// The lowest of the others speaks for all: said twice, it could meet those who have come instead.
void TrainerCore::reject_replicas(const std::vector<int>& wrong, const std::string& what) {
  int speaker = 0;
  while (std::ranges::count(wrong, speaker) > 0) ++speaker;
  if (recovers_ && can_recover(world_)) {
    if (world_.rank() == speaker) reject(world_, wrong, what);
    world_.abort();
  }
  throw Error(what);
}

}  // namespace lockstep
