#pragma once

#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/messages.h"

namespace lockstep {

/// How long the small job may take.
inline constexpr int kSmokeLimitMs = 180000;

/// How a node takes part in the smoke test: a small job, started as any other, in which all ranks
/// add up numbers.
struct SmokeSetup {
  bool enabled = false;  // --smoke: a node that was not told so starts nothing
  std::string program;   // --smoke-program; empty: a script for the Python
  std::string python;    // with torch; empty: none
  std::string secret;    // empty: --insecure
  bool tls = false;      // --tls

  bool can_run() const { return !program.empty() || !python.empty(); }
};

/// Runs this node's part of the job. Blocks, up to the limit.
SmokeAnswer run_smoke(const SmokeQuestion& question, const SmokeSetup& setup);

/// The command line of that part. `script` is what the Python runs.
std::vector<std::string> smoke_command(const SmokeQuestion& question, const SmokeSetup& setup,
                                       const std::string& lockstep, const std::string& script);

/// What a job that ended says for itself: the line of rank 0, or else what was said last.
std::string smoke_words(int code, const std::string& out, const std::string& err);

void judge_smoke(const SmokeAnswer& answer, FindingList& list);

}  // namespace lockstep
