#pragma once

#include <memory>
#include <string>
#include <variant>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/group_impl.h"
#include "comm/group_team.h"
#include "comm/messages.h"
#include "comm/rank_layout.h"
#include "comm/segment_agreement.h"

namespace lockstep {

/// The same on every rank: who is where, or why that does not help.
std::variant<RankLayout, std::string> find_layout(const GroupImpl& group);

Circle circle_of_all(const GroupImpl& group, const c10::intrusive_ptr<c10d::Backend>& gloo,
                     int tag);

/// What the memory is for.
struct ShmUse {
  const char* what = "reductions go";  // over TCP otherwise
  bool insisted = false;      // a refusal is told even if it is somebody's wish or the job's nature
  int tag = kOrderedTeamTag;  // of messages between machines, and the one after it
  bool mail = false;          // messages between two ranks, too
};

/// Lets the ranks of a group work together through shared memory, on each of its machines, or finds
/// that one of them cannot; then all get null, and the first rank says why in one line.
/// LOCKSTEP_SHM=0 on any rank is such a reason, and that no two ranks are on one machine.
///
/// Every rank of the group calls it. It talks over `gloo`, under `tag`, and throws what Gloo
/// throws.
std::unique_ptr<GroupTeam> form_group_team(const GroupImpl& group,
                                           const c10::intrusive_ptr<c10d::Backend>& gloo, int tag,
                                           const ShmUse& use = {});

}  // namespace lockstep
