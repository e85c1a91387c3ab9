#include "train/carry_over.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "comm/recovery.h"
#include "lockstep/error.h"
#include "lockstep/sync_batch_norm.h"
#include "snapshot/staging.h"
#include "train/state_stream.h"
#include "train/state_transfer.h"

namespace lockstep {
namespace {

using nlohmann::json;

// A broken connection may be noticed before the launcher's word of the death is here.
constexpr std::chrono::seconds kWordOfLauncher{30};
constexpr std::chrono::milliseconds kLook{20};

// CBOR and not text, because numbers may be infinite.
std::string pack(const json& value) {
  const std::vector<std::uint8_t> bytes = json::to_cbor(value);
  return {bytes.begin(), bytes.end()};
}

// What the takers of a state are told of it.
json describe_offer(HandedState& offered) {
  offered.bytes = total_bytes(distinct_tensors(offered.state));
  return {{"state", describe_state(offered.state)},
          {"values", offered.values},
          {"bytes", offered.bytes}};
}

// After all have heard of it; `handed` is what the source has offered.
HandedState transfer_state(ProcessGroup& group, const Standing& standing, const StateHolder& holder,
                           json message, HandedState handed) {
  const bool is_source = group.rank() == standing.source;
  const Transfer transfer{
      .givers = standing.givers, .takers = standing.takers, .bytes = message.at("bytes")};
  if (standing.takes(group.rank())) {
    handed.state = allocate_state(
        message.at("state"),
        holder.give_up({.description = message.at("state"), .bytes = transfer.bytes}));
    std::vector<at::Tensor> tensors = distinct_tensors(handed.state);
    if (total_bytes(tensors) != transfer.bytes) {  // two of them are one here, and not there
      handed.state = allocate_state(message.at("state"));
      tensors = distinct_tensors(handed.state);
    }
    receive_tensors(group, transfer, tensors);
  } else if (sends(group.rank(), group, transfer)) {
    if (!is_source) handed = holder.offer();
    send_tensors(group, transfer, distinct_tensors(handed.state));
  }
  if (!standing.takes(group.rank())) handed.state = {};
  if (!is_source || standing.takers.empty()) handed.bytes = 0;
  handed.values = std::move(message.at("values"));
  return handed;
}

}  // namespace

bool ranks_were_lost(World& world, const std::function<bool()>& asked_to_stop) {
  using Clock = std::chrono::steady_clock;
  if (!can_recover(world)) return false;
  const bool broken = !all_groups_work(world);
  const auto limit = Clock::now() + (broken ? kWordOfLauncher : std::chrono::seconds(0));
  do {
    if (await_revocation(world, kLook)) return true;
    if (asked_to_stop()) return false;
  } while (Clock::now() < limit);
  return false;
}

bool Standing::takes(int rank) const {
  return std::ranges::count(takers, rank) > 0;
}

bool Standing::concerns(int rank) const {
  return takes(rank) || std::ranges::count(givers, rank) > 0;
}

// A rank may give one state and take the next, as in copies of parts. Were it done by number, each
// would wait for the one before; so what has no rank in common comes first, and then the rest.
std::vector<int> order_of_transfers(const std::vector<Standing>& standings) {
  std::vector<int> order, left(standings.size());
  std::iota(left.begin(), left.end(), 0);
  std::erase_if(left, [&](int i) { return standings[i].takers.empty(); });
  while (!left.empty()) {
    std::set<int> busy;
    std::vector<int> later;
    for (const int i : left) {
      std::vector<int> ranks = standings[i].givers;
      ranks.insert(ranks.end(), standings[i].takers.begin(), standings[i].takers.end());
      const bool apart = std::ranges::none_of(ranks, [&](int rank) { return busy.contains(rank); });
      (apart ? order : later).push_back(i);
      if (apart) busy.insert(ranks.begin(), ranks.end());
    }
    left = std::move(later);
  }
  return order;
}

Standing compare_commits(ProcessGroup& group, std::optional<std::int64_t> commits) {
  constexpr std::int64_t kNoState = -1;
  std::vector<std::int64_t> all;
  for (const json& each : group.all_gather_json(commits.value_or(kNoState))) all.push_back(each);
  const std::int64_t newest = *std::ranges::max_element(all);
  if (newest == kNoState) throw Error("no rank has the state of the run any more");
  Standing standing;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] < newest) {
      standing.takers.push_back(static_cast<int>(rank));
    } else {
      standing.givers.push_back(static_cast<int>(rank));
    }
  }
  standing.source = standing.givers.front();
  return standing;
}

const json& StateOffer::part(const std::string& name) const {
  const auto& parts = description.at("parts");
  const auto found = parts.find(name);
  if (found == parts.end()) {
    throw InvalidArgument(concat("this process replaces another, but the others' state has no ",
                                 name, "; all ranks must run the same program"));
  }
  return *found;
}

bool StateOffer::fits_in_memory() const {
  constexpr std::uint64_t kReserveBytes = 256 << 20;
  const std::uint64_t available = available_memory();
  return available >= kReserveBytes && bytes <= available - kReserveBytes;
}

HandedState hand_over(ProcessGroup& group, const Standing& standing, const StateHolder& holder) {
  HandedState handed;
  std::string text;
  if (group.rank() == standing.source) {
    handed = holder.offer();
    text = pack(describe_offer(handed));
  }
  json message = json::from_cbor(group.broadcast_string(text, standing.source));
  return transfer_state(group, standing, holder, std::move(message), std::move(handed));
}

std::vector<HandedState> hand_over_each(ProcessGroup& group, const std::vector<Standing>& standings,
                                        const std::function<StateHolder(int)>& holder_of) {
  const auto count = static_cast<int>(standings.size());
  std::vector<HandedState> handed(standings.size());
  if (std::ranges::all_of(standings, [](const Standing& each) { return each.takers.empty(); })) {
    return handed;
  }
  json offers = json::array();
  for (int i = 0; i < count; ++i) {
    if (standings[i].takers.empty() || standings[i].source != group.rank()) continue;
    handed[i] = holder_of(i).offer();
    offers.push_back({i, describe_offer(handed[i])});
  }
  std::map<int, json> messages;
  for (const std::string& text : group.all_gather_string(pack(offers))) {
    for (json& offer : json::from_cbor(text)) {
      messages[offer.at(0).get<int>()] = std::move(offer.at(1));
    }
  }
  for (const int i : order_of_transfers(standings)) {
    if (!standings[i].concerns(group.rank())) continue;
    handed[i] = transfer_state(group, standings[i], holder_of(i), std::move(messages.at(i)),
                               std::move(handed[i]));
  }
  return handed;
}

bool has_group_of_its_own(const torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& each : module.modules()) {
    const auto* norm = each->as<SyncBatchNormImpl>();
    if (norm != nullptr && norm->group().name() != group.name()) return true;
  }
  return false;
}

void join_group(torch::nn::Module& module, const ProcessGroup& group) {
  for (const auto& each : module.modules()) {
    if (auto* norm = each->as<SyncBatchNormImpl>()) norm->set_group(group);
  }
}

}  // namespace lockstep
