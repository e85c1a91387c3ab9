#pragma once

#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/pair_result.h"

namespace lockstep {

/// All that the doctor has found.
struct DoctorReport {
  std::vector<std::string> nodes;  // their names, in the order of the checks
  Findings findings;
  std::vector<PairResult> pairs;
  double seconds = 0;

  int count(FindingLevel level) const;

  /// What `lockstep doctor` exits with: 1 if there is an error.
  int exit_code() const { return count(FindingLevel::error) > 0 ? 1 : 0; }
};

enum class ReportDetail {
  problems,  // warnings and errors
  usual,     // on several nodes, what is well in a few words
  all,
};

/// One line for each finding, those that several nodes share said once, the worst last; a table of
/// what was measured between pairs; and what it comes to.
std::string to_text(const DoctorReport& report, ReportDetail detail);

/// "doctor: 2 errors, 1 warning on 3 nodes (4.1 s)".
std::string summary_line(const DoctorReport& report);

/// One document: {"nodes", "findings", "pairs", "errors", "warnings", "seconds"}.
std::string to_json(const DoctorReport& report);

}  // namespace lockstep
