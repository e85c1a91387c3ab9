#include "launch/store_status.h"

#include "control/store_arrival.h"

namespace lockstep {

std::optional<std::vector<int>> ranks_not_arrived(const StoreStatus& status, int world_size) {
  StoreTraces traces{.arrival_keys = status.arrival_keys, .any_client = !status.clients.empty()};
  for (const StoreClientStatus& client : status.clients) {
    traces.awaited_keys.insert(traces.awaited_keys.end(), client.awaited_keys.begin(),
                               client.awaited_keys.end());
  }
  return ranks_not_arrived(traces, world_size);
}

}  // namespace lockstep
