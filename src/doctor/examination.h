#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "doctor/desk.h"
#include "doctor/pair_result.h"

namespace lockstep {

/// What was found out about several nodes together, before anybody judges it. Nodes are numbered.
struct Examination {
  int wanted_nodes = 1;
  std::vector<DeskNode> nodes;
  std::vector<std::string> silent;  // DoctorDesk::silent()

  /// How far each node's clock is ahead of the first one's, and how well that is known.
  struct Offset {
    double seconds = 0;
    double uncertainty = 0;
  };
  std::vector<std::optional<Offset>> clocks;

  std::vector<std::optional<NamesAnswer>> names;  // what each says about the hosts of all
  std::vector<PairResult> pairs;

  std::string shared_folder;                      // empty: none
  std::string writer_problem;                     // of the first node, which writes
  std::vector<std::optional<SmokeAnswer>> smoke;  // of each node; empty: not tried
  std::vector<std::optional<MarkAnswer>> marks;   // what each saw of a file that the first wrote
};

struct ExaminationOptions {
  std::string shared_folder;
  int most_rounds = 8;  // of pairs; 0: all pairs
  bool smoke = false;
  std::function<void(const std::string&)> say;
};

/// Asks the nodes at the desk all there is to ask.
Examination examine(DoctorDesk& desk, int wanted_nodes, const ExaminationOptions& options);

}  // namespace lockstep
