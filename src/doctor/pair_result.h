#pragma once

#include <optional>
#include <string>

namespace lockstep {

/// What one node found out about an address of another.
struct PairResult {
  int from = 0;  // numbers of nodes
  int to = 0;
  std::string address;             // of `to`, where it was looked for
  bool main = false;               // the one that a job would use
  bool on_common_network = false;  // or on one that `from` has an address in

  std::string problem;                     // why it could not be reached; empty: it could
  double latency_us = 0;                   // the median of some round trips
  double least_latency_us = 0;             // and the fastest of them
  std::optional<double> bytes_per_second;  // where it was measured
  int path_mtu = 0;                        // what the kernel believes; 0: unknown
  bool stalled = false;                    // small messages pass, large ones do not

  bool reached() const { return problem.empty(); }
  bool operator==(const PairResult&) const = default;
};

}  // namespace lockstep
