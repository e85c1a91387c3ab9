#include "launch/network_survey.h"

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostWhoTryAll = 9;
constexpr std::size_t kDistances[] = {1, 2, 4, 8};

}  // namespace

NetworkSurvey::NetworkSurvey(std::uint64_t first_round, std::vector<Member> members)
    : members_(std::move(members)), round_(first_round) {
  for (const Member& member : members_) {
    indices_.emplace(member.id, nodes_.size());
    nodes_.push_back({.host = member.host, .addresses = {}, .named_by = ""});
  }
}

std::optional<std::size_t> NetworkSurvey::index_of(const std::string& id) const {
  const auto found = indices_.find(id);
  if (found == indices_.end()) return std::nullopt;
  return found->second;
}

std::optional<Message> NetworkSurvey::question(const std::string& id) const {
  const auto index = index_of(id);
  if (!index || choice_ || answered_.contains(*index)) return std::nullopt;
  if (stage_ == Stage::addresses) return AskAddresses{round_};
  return probes_of(*index);
}

std::vector<std::size_t> NetworkSurvey::neighbours(std::size_t index) const {
  const std::size_t count = members_.size();
  std::set<std::size_t> all;
  if (count <= kMostWhoTryAll) {
    for (std::size_t i = 0; i < count; ++i) all.insert(i);
  } else {
    for (const std::size_t distance : kDistances) {
      all.insert((index + distance) % count);
      all.insert((index + count - distance) % count);
    }
  }
  all.erase(index);
  return {all.begin(), all.end()};
}

ProbeNodes NetworkSurvey::probes_of(std::size_t index) const {
  ProbeNodes probes{.round = round_, .targets = {}};
  for (const std::size_t other : neighbours(index)) {
    // These two have found each other before.
    if (!members_[index].settled.empty() && !members_[other].settled.empty()) continue;
    const auto& addresses = nodes_[other].addresses;
    const std::size_t count =
        stage_ == Stage::all ? addresses.size() : std::min<std::size_t>(1, addresses.size());
    for (std::size_t i = 0; i < count; ++i) {
      probes.targets.push_back({.node = static_cast<int>(other),
                                .address = static_cast<int>(i),
                                .id = members_[other].id,
                                .at = addresses[i].address,
                                .port = addresses[i].port});
    }
  }
  return probes;
}

bool NetworkSurvey::on_answer(const std::string& id, const Addresses& answer) {
  const auto index = index_of(id);
  if (!index || stage_ != Stage::addresses || answer.round != round_) return false;
  SurveyedNode& node = nodes_[*index];
  node.addresses = answer.addresses;
  node.named_by = answer.named_by;
  const std::string& settled = members_[*index].settled;
  const auto is_settled = [&](const NodeAddress& each) { return each.address == settled; };
  // What the others have agreed on stays, as long as the node has it.
  if (std::ranges::any_of(node.addresses, is_settled)) {
    std::erase_if(node.addresses, [&](const NodeAddress& each) { return !is_settled(each); });
  }
  std::ranges::stable_partition(node.addresses, &NodeAddress::allowed);
  return note_answer(*index, answer.round);
}

bool NetworkSurvey::on_answer(const std::string& id, const Probed& answer) {
  const auto index = index_of(id);
  if (!index || stage_ == Stage::addresses || answer.round != round_) return false;
  if (answered_.contains(*index)) return false;
  for (const ProbeFailure& failure : answer.failures) {
    const auto node = static_cast<std::size_t>(failure.node);
    const auto address = static_cast<std::size_t>(failure.address);
    if (node >= nodes_.size() || address >= nodes_[node].addresses.size()) continue;
    unreached_.push_back({.from = static_cast<int>(*index),
                          .node = failure.node,
                          .address = failure.address,
                          .reason = failure.reason});
  }
  return note_answer(*index, answer.round);
}

bool NetworkSurvey::note_answer(std::size_t index, std::uint64_t round) {
  if (choice_ || round != round_ || !answered_.insert(index).second) return false;
  if (answered_.size() < members_.size()) return false;
  move_on();
  return true;
}

void NetworkSurvey::move_on() {
  const bool favourites_do = stage_ == Stage::favourites && unreached_.empty();
  if (favourites_do || stage_ == Stage::all) {
    std::vector<SurveyedNode> nodes = nodes_;
    if (favourites_do) {  // the others were not tried
      for (SurveyedNode& node : nodes)
        node.addresses.resize(std::min<std::size_t>(1, node.addresses.size()));
    }
    choice_ = choose_network(nodes, unreached_);
    return;
  }
  stage_ = stage_ == Stage::addresses ? Stage::favourites : Stage::all;
  ++round_;
  answered_.clear();
  unreached_.clear();
}

std::vector<std::string> NetworkSurvey::chosen() const {
  std::vector<std::string> addresses;
  for (std::size_t i = 0; i < choice_->addresses.size(); ++i) {
    addresses.push_back(
        nodes_[i].addresses[static_cast<std::size_t>(choice_->addresses[i])].address);
  }
  return addresses;
}

std::vector<std::string> NetworkSurvey::silent() const {
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (!answered_.contains(i)) hosts.push_back(members_[i].host);
  }
  return hosts;
}

}  // namespace lockstep
