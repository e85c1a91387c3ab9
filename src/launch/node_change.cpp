#include "launch/node_change.h"

namespace lockstep {

Event event_of(const NodeChange& change, std::uint64_t epoch) {
  const bool lost = change.kind == NodeChange::Kind::lost;
  Event event{.kind = lost ? "node_lost" : "node_joined",
              .epoch = epoch,
              .slot = std::nullopt,
              .fields = {{"node", change.host},
                         {"address", change.address},
                         {"workers", std::int64_t{change.workers}}}};
  if (lost) event.fields.push_back({"reason", change.reason});
  return event;
}

}  // namespace lockstep
