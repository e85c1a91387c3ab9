#include "launch/stack_of_job.h"

#include <ostream>

#include "launch/run_directory.h"
#include "launch/stack_command.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string describe(const JobRecord& job) {
  return concat(job.run_id, " (launcher ", job.pid, ", started ", job.started, ")");
}

LiveJob choose_job(const std::vector<LiveJob>& jobs, const std::string& wanted) {
  std::vector<LiveJob> meant;
  for (const LiveJob& job : jobs) {
    if (job.record.run_id.starts_with(wanted)) meant.push_back(job);
  }
  if (meant.size() == 1) return meant.front();
  if (meant.empty() && wanted.empty()) {
    throw InvalidArgument("no job of this user runs on this machine");
  }
  const std::vector<LiveJob>& shown = meant.empty() ? jobs : meant;
  std::string list;
  for (const LiveJob& job : shown) list += concat(list.empty() ? "" : ", ", describe(job.record));
  throw InvalidArgument(
      concat(meant.empty() ? concat("no running job has an id that begins with '", wanted, "'")
                           : std::string("more than one job runs"),
             "; name one of: ", list.empty() ? "(none runs)" : list));
}

}  // namespace

int stack_of_job(const std::vector<std::string>& arguments, const Environment& environment,
                 std::ostream& out) {
  if (!arguments.empty() && (arguments[0] == "-h" || arguments[0] == "--help")) {
    out << "usage: lockstep stack [JOB]\n\n"
           "Shows where every rank of a job on this machine stands, also of stopped processes.\n"
           "JOB is the beginning of the job's id; it may be left out while only one job runs.\n";
    return 0;
  }
  if (arguments.size() > 1) {
    throw InvalidArgument(concat("stack takes one job, not '", arguments[1], "'"));
  }
  const LiveJob job =
      choose_job(find_live_jobs(environment), arguments.empty() ? "" : arguments[0]);
  out << "job " << describe(job.record) << ", epoch " << job.record.epoch << ", "
      << job.record.workers.size() << " of " << job.record.world_size << " ranks on this machine\n";
  std::vector<RankProcess> ranks;
  for (const WorkerRecord& worker : job.record.workers) {
    // A worker that has ended may have left its number to another process.
    if (process_start_time(worker.pid) != worker.start_time) continue;
    ranks.push_back({.rank = worker.rank, .pid = worker.pid, .host = ""});
  }
  return stack_command(ranks, {}, out);
}

}  // namespace lockstep
