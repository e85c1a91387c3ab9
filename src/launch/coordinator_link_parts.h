#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "launch/coordinator_link.h"

namespace lockstep {

/// See CoordinatorShell::Callbacks; unset: records are not kept.
using RecordKeeper =
    std::function<void(const CoordinatorRecord& record, std::function<void()> kept)>;

/// A coordinator in this process, and the agent's way to it.
std::unique_ptr<CoordinatorLink> make_local_link(EventLoop& loop, const CoordinatorOptions& options,
                                                 std::optional<CoordinatorShell::Remote> remote,
                                                 RecordKeeper keeper,
                                                 CoordinatorLink::Callbacks callbacks);

/// The way to a coordinator elsewhere.
std::unique_ptr<CoordinatorLink> make_remote_link(EventLoop& loop, const JobPlan& plan,
                                                  const Endpoint& server,
                                                  CoordinatorLink::Callbacks callbacks);

/// How nodes prove themselves to a coordinator here.
LinkServerOptions link_server_options(const JobPlan& plan);

}  // namespace lockstep
