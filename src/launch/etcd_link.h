#pragma once

#include <memory>

#include "launch/coordinator_link.h"

namespace lockstep {

/// The agent's way to a coordinator that moves: etcd tells on which node it is, and it is here when
/// this node is the one that leads. Throws SystemError if no port can be had.
std::unique_ptr<CoordinatorLink> make_etcd_link(EventLoop& loop, JobPlan& plan,
                                                CoordinatorLink::Callbacks callbacks);

}  // namespace lockstep
