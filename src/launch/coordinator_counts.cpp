// What the coordinator keeps count of, so that a message of one node costs no look at all others.
#include "launch/coordinator.h"
#include "lockstep/error.h"

namespace lockstep {

void Coordinator::count(const Node& node, int sign) {
  if (is_free(node)) {
    sign > 0 ? void(free_.insert(node.info.id)) : void(free_.erase(node.info.id));
  }
  if (node.link) {
    std::tuple elder(!node.hosts_coordinator, node.joined, node.info.id);
    sign > 0 ? void(elders_.insert(std::move(elder))) : void(elders_.erase(elder));
  }
  if (node.link && node.info.node_rank) {
    const auto holders = by_rank_.try_emplace(*node.info.node_rank).first;
    sign > 0 ? void(holders->second.insert(node.info.id))
             : void(holders->second.erase(node.info.id));
    if (holders->second.empty()) by_rank_.erase(holders);
  }
  if (!node.participant) return;
  counts_.members += sign;
  if (node.link) counts_.linked += sign;
  if (node.busy != 0) counts_.busy += sign;
  if (!node.ready) counts_.unready += sign;
  if (node.succeeded) counts_.succeeded += sign;
  if (!node.succeeded && node.membership.local_workers() > 0) counts_.unfinished += sign;
}

void Coordinator::erase(const std::string& id) {
  const auto found = nodes_.find(id);
  LOCKSTEP_CHECK(found != nodes_.end(), id);
  count(found->second, -1);
  give_up_survey_with(id);
  nodes_.erase(found);
}

bool Coordinator::lacks_participants() const {
  return static_cast<std::size_t>(counts_.members) + absent_.size() < participants_.size();
}

// A rack, or a switch: those who live on are stopped once, and not once for each node.
void Coordinator::lose_all(const std::vector<std::pair<std::string, std::string>>& lost) {
  const bool is_first_loss = !loss_;
  collects_losses_ = lost.size() > 1;
  for (const auto& [id, reason] : lost) lose(id, reason);
  if (!std::exchange(collects_losses_, false) || !loss_) return;
  if (is_first_loss) loss_->ending.reason += concat(", and ", lost.size() - 1, " more nodes");
  retry_loss();
}

}  // namespace lockstep
