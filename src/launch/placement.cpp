#include "launch/placement.h"

namespace lockstep {

Placement place_worker(const JobPlan& plan, const StartWorkers& start, int local_rank) {
  const Membership& place = start.membership;
  const int slot = place.self.first_rank + local_rank;
  return {.rank = place.rank_of(slot),
          .local_rank = local_rank,
          .world_size = place.world_size(),
          .local_world_size = place.local_workers(),
          .group_rank = place.group_rank,
          .group_world_size = place.group_world_size,
          .role_rank = place.first_role_rank + place.local_workers(/*below=*/local_rank),
          .role_world_size = place.role_world_size,
          .role_name = plan.options.role,
          .master_addr = plan.master_addr.empty() ? start.master_addr : plan.master_addr,
          .master_port = start.master_port,
          .restart_count = place.restart_count,
          .max_restarts = plan.options.max_restarts,
          .run_id = plan.options.rdzv_id,
          .use_agent_store = plan.share_store || plan.options.rdzv_backend == "static",
          .error_file = "",
          .epoch = place.epoch,
          .slot = slot,
          .slots = place.places,
          .joins = start.carries_over,
          .agent_socket = "",
          .run_dir = ""};
}

Environment::Variables variables_of_worker(const JobPlan& plan, const Placement& placement) {
  Environment::Variables variables = worker_environment(plan.environment, plan.options, placement);
  // They would go by the machine's name, which often stands for another network or for loopback.
  if (!plan.interface.empty()) {
    variables.emplace("GLOO_SOCKET_IFNAME", plan.interface);
    variables.emplace("NCCL_SOCKET_IFNAME", "=" + plan.interface);  // not as a prefix
  }
  return variables;
}

}  // namespace lockstep
