#include "launch/final_report.h"

#include <unistd.h>
#include <optional>

#include "core/durable_file.h"
#include "launch/line_prefix.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A worker's failure as its node described it; nothing is worse than a report that fails itself.
std::optional<WorkerFailure> failure_of(const WorkerFailed& failed) {
  if (failed.details.empty()) return std::nullopt;
  try {
    return worker_failure_from_json(failed.details);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

FailureReport report_of(const RunOptions& options, const Finish& finish) {
  FailureReport report{.program = options.script,
                       .reason = finish.reason,
                       .first = std::nullopt,
                       .others = {},
                       .more_failed = finish.more_failed,
                       .stopped_ranks = finish.stopped_ranks};
  for (const WorkerFailed& failed : finish.failures) {
    const auto failure = failure_of(failed);
    if (!failure) continue;
    if (!report.first) {
      report.first = failure;
    } else {
      report.others.push_back(*failure);
    }
  }
  return report;
}

void print_report(const RunOptions& options, const Finish& finish, const Environment& environment,
                  const Console& console) {
  const FailureReport report = report_of(options, finish);
  if (!report.first) return console.warn(finish.reason);
  console.print(to_text(report, {.colour = shows_colours(STDERR_FILENO, environment)}));
  const auto own_error_file = environment.get("TORCHELASTIC_ERROR_FILE");
  if (own_error_file && !own_error_file->empty()) {
    try {
      write_durably(*own_error_file, error_file_for_parent(*report.first));
    } catch (const SystemError& error) {
      console.warn(error.what());  // the worker's exit code matters more
    }
  }
}

}  // namespace lockstep
