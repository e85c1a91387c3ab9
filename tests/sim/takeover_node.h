#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/coordinator.h"
#include "launch/leadership.h"

namespace lockstep::sim {

/// One node of a job that meets through etcd: its agent, its say in who leads, and the coordinator
/// while it does. All of it goes with the process.
struct TakeoverNode {
  int index = 0;
  int life = 0;  // of the process
  bool alive = false;
  std::string id;
  std::unique_ptr<Agent> agent;
  std::unique_ptr<Leadership> leadership;
  std::unique_ptr<Coordinator> coordinator;
  std::optional<Finish> finish;

  // What CoordinatorShell does: epochs are announced when their record is kept.
  std::uint64_t reign = 0;  // grows with every coordinator here
  std::uint64_t kept_version = 0;
  Epoch kept_epoch = 0;
  int unkept_epochs = 0;
  std::uint64_t last_record = 0;
  std::map<std::uint64_t, bool> records;  // that are not kept yet, and whether of a new epoch
  std::vector<CoordinatorAction> held;
  bool coordinator_done = false;

  // What EtcdLink does.
  std::optional<Leader> leader;  // that it follows
  std::uint64_t attempt = 0;     // to connect
  std::optional<LinkId> link;
  bool in_touch = false;
  bool resigns = false;
  Time heard{0};
  std::uint64_t highest_term = 0;

  struct Worker {
    bool runs = false;
    Epoch started = 0;
    std::uint64_t number = 0;
  };
  std::vector<Worker> workers;
  Membership membership;
  std::uint64_t last_worker = 0;

  std::uint64_t agent_timer = 0;
  std::uint64_t coordinator_timer = 0;
  std::uint64_t leadership_timer = 0;
};

/// A connection from a node to a coordinator.
struct TakeoverLink {
  int node = 0;
  int host = 0;
  int node_life = 0;
  std::uint64_t reign = 0;  // of the coordinator at its other end
  bool node_open = true;
  bool host_open = true;
  bool lost_something = false;
  Time last_up{0};  // what is sent comes in order
  Time last_down{0};
};

}  // namespace lockstep::sim
