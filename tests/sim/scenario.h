#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/agent.h"
#include "launch/coordinator.h"
#include "launch/messages.h"

namespace lockstep::sim {

/// A monotonic clock: it starts anywhere and runs up to 0.1 % fast or slow.
struct Clock {
  Time offset{0};
  std::int64_t parts_per_million = 0;

  Time local(Time real) const {
    return offset + real + Time(real.count() / 1'000'000 * parts_per_million);
  }
  /// The first real time at which this clock shows `local` or more.
  Time real(Time local) const;
};

struct NodeScenario {
  Time start{0};
  bool never_comes = false;
  Clock clock;
  int address = 1;  // the last number of it
  int workers = 1;
  std::optional<int> node_rank;
  bool other_run_id = false;
  bool dead_address = false;  // nobody reaches it at its first address
};

/// Machines that go and come back: a rack that loses power, a wave of a rolling reboot.
struct PlannedFault {
  Time when{0};
  int first = 0;  // node
  int count = 1;
  bool power_lost = false;
  Time back_after{0};
};

/// A time in which no record can be kept: etcd does not answer.
struct Stall {
  Time from{0};
  Time until{0};
};

/// What the faults and the workers of one simulated job are like.
struct Scenario {
  std::uint64_t seed = 0;
  JobTerms terms;
  std::vector<NodeScenario> nodes;
  CoordinatorOptions coordinator;
  AgentOptions agent;  // but for `self`

  Time work{0};                // how long a worker runs that nothing happens to
  Time uneven{0};              // how much longer some run
  bool contagious = false;     // workers fail when others of their epoch have
  int failing_percent = 0;     // of workers
  int stuck_percent = 0;       // of those that get SIGKILL
  int ignoring_percent = 0;    // of workers, SIGTERM
  int grandchild_percent = 0;  // of workers
  int resume_percent = 0;      // of failures: exit code 75
  int broken_percent = 0;      // of store openings

  bool trains = false;        // workers can be carried over (training.h)
  bool must_survive = false;  // nothing happens that the job cannot go on from in place
  int steps = 1;
  int spares = 0;               // on each node
  Time latest_start{0};         // of training, after all have met for the first time
  int unstartable_percent = 0;  // of workers that join others

  bool keeps_log = false;       // a coordinator that is started again goes on from its record
  bool second_network = false;  // all nodes have an address in it as well
  /// Whether there is a network over which all nodes reach each other.
  bool has_network() const;

  std::vector<PlannedFault> plan;
  std::vector<Stall> stalls;
  Time fault_gap{0};            // between faults on average; 0: none
  int losing_percent = 0;       // of messages that matter, each with its connection
  int repeating_percent = 0;    // likewise, an older one after them
  std::optional<Time> warning;  // when a scheduler warns all nodes that the job's time ends
  Time faults_end{0};
  Time end_limit{0};  // by when the job must have ended

  std::string describe() const;
};

Scenario make_scenario(std::uint64_t seed);

}  // namespace lockstep::sim
