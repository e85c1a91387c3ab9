#pragma once

#include <vector>

#include "launch/messages.h"

namespace lockstep {

/// Orders nodes as their ranks will be: by the rank they were given, then by address, so that a
/// restart, or another process on the same machine, finds the same place.
void sort_by_rank_order(std::vector<NodeInfo>& nodes);

/// Places for all nodes of an epoch, in the order given.
std::vector<Membership> form_memberships(const std::vector<NodeInfo>& nodes, Epoch epoch,
                                         int restart_count, const std::vector<int>& left_out = {});

}  // namespace lockstep
