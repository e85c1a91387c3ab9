#include "launch/worker_group.h"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>

#include "core/exec_process.h"
#include "launch/descendants.h"
#include "launch/failure_report.h"
#include "launch/line_tail.h"
#include "launch/placement.h"
#include "launch/wall_time.h"
#include "lockstep/error.h"

namespace lockstep {

WorkerGroup::WorkerGroup(const JobPlan& plan, Services services)
    : plan_(plan), services_(std::move(services)) {}

void WorkerGroup::start(const StartWorkers& start) {
  if (!start.carries_over || start.begins) {
    close_ended_streams();
    services_.layout.begin_attempt(
        {.epoch = start.membership.epoch, .restart_count = start.membership.restart_count});
  }
  if (start.carries_over) {  // else in the same attempt: logs are written on
    for (const int rank : start.replaced) {
      const int local_rank = rank - start.membership.self.first_rank;
      if (local_rank < 0 || local_rank >= plan_.workers) continue;
      end_what_is_left_of(local_rank);
      close_streams_of(local_rank);
      if (!take_spare(start, local_rank)) start_one(start, local_rank);
    }
    return;
  }
  for (int local_rank = 0; local_rank < plan_.workers; ++local_rank) start_one(start, local_rank);
}

WorkerGroup::Prepared WorkerGroup::prepare(const StartWorkers& start, int local_rank) const {
  Placement placement = place_worker(plan_, start, local_rank);
  const WorkerLogs logs =
      services_.layout.prepare_worker({.rank = placement.slot, .local_rank = local_rank});
  placement.error_file = logs.error_file;
  placement.agent_socket = services_.agent_socket;
  placement.run_dir = services_.run_directory;
  return {placement, logs,
          Worker{.epoch = placement.epoch,
                 .rank = placement.slot,
                 .local_rank = local_rank,
                 .restart_count = placement.restart_count,
                 .node_rank = placement.group_rank,
                 .joins = placement.joins,
                 .error_file = logs.error_file}};
}

void WorkerGroup::start_one(const StartWorkers& start, int local_rank) {
  Prepared prepared = prepare(start, local_rank);
  WorkerSpec spec{.argv = plan_.command.argv(local_rank), .environment = {}};
  for (const auto& [name, value] : variables_of_worker(plan_, prepared.placement)) {
    spec.environment.emplace(name, value);
  }
  if (!plan_.cpus.empty()) {
    const CpuSet& cpus = plan_.cpus[static_cast<std::size_t>(local_rank)];
    spec.cpus.assign(cpus.begin(), cpus.end());
  }
  const UniqueFd out = connect(OutputStream::out, prepared);
  const UniqueFd err = connect(OutputStream::err, prepared);
  spec.stdout_fd = out.get();
  spec.stderr_fd = err.get();

  const std::uint64_t id = ++last_id_;
  services_.keeper.start(id, spec);
  workers_.emplace(id, std::move(prepared.worker));
}

// It runs already: it hears what a new process would find in its environment, and what it has
// written so far belongs to the worker that it becomes.
bool WorkerGroup::take_spare(const StartWorkers& start, int local_rank) {
  while (const auto spare = services_.spares.take()) {
    Prepared prepared = prepare(start, local_rank);
    TakePlace take;
    for (const auto& [name, value] : variables_of_worker(plan_, prepared.placement)) {
      if (plan_.environment.get(name) != value) take.variables.emplace(name, value);
    }
    Worker& worker = prepared.worker;
    if (!services_.give_place(spare->number, {.slot = worker.rank, .epoch = worker.epoch}, take)) {
      services_.spares.discard(*spare);
      continue;
    }
    const OutputPlan out = output_of(OutputStream::out, prepared);
    const OutputPlan err = output_of(OutputStream::err, prepared);
    services_.pump.redirect(spare->stdout_stream, out.stream);
    services_.pump.redirect(spare->stderr_stream, err.stream);
    worker.stdout_stream = spare->stdout_stream;
    worker.stderr_stream = spare->stderr_stream;
    worker.stderr_log = err.stream.file;
    worker.pid = spare->pid;
    note_start(worker, /*was_spare=*/true);
    workers_.emplace(spare->id, std::move(worker));
    return true;
  }
  return false;
}

OutputPlan WorkerGroup::output_of(OutputStream stream, const Prepared& prepared) const {
  const Placement& placement = prepared.placement;
  return plan_output(stream, plan_.options, prepared.logs,
                     {.role_name = placement.role_name,
                      .rank = placement.slot,
                      .local_rank = placement.local_rank,
                      .node_rank = placement.group_rank,
                      .host = plan_.host,
                      .epoch = placement.epoch,
                      .restart_count = placement.restart_count},
                     plan_.environment);
}

// What the worker writes to; none: it gets the launcher's own.
UniqueFd WorkerGroup::connect(OutputStream stream, Prepared& prepared) {
  const OutputPlan output = output_of(stream, prepared);
  Worker& worker = prepared.worker;
  const bool is_error = stream == OutputStream::err;
  if (is_error) worker.stderr_log = output.stream.file;
  switch (output.kind) {
    case OutputPlan::Kind::inherit:
      return UniqueFd();
    case OutputPlan::Kind::null:
      return open_output_file("/dev/null");
    case OutputPlan::Kind::file:
      return open_log_file(output.file);
    case OutputPlan::Kind::pump:
      break;
  }
  const std::uint64_t id = ++last_stream_;
  (is_error ? worker.stderr_stream : worker.stdout_stream) = id;
  return services_.pump.open(id, output.stream);
}

void WorkerGroup::note_start(const Worker& worker, bool was_spare) {
  services_.events.write({.kind = "worker_start",
                          .epoch = worker.epoch,
                          .slot = worker.rank,
                          .fields = {{"pid", std::int64_t{worker.pid}},
                                     {"local_rank", std::int64_t{worker.local_rank}},
                                     {"spare", was_spare}}});
}

// What it has started may hold the devices and ports that its successor needs. It is in the session
// that began with the worker, unless it has begun one of its own.
void WorkerGroup::end_what_is_left_of(int local_rank) const {
  const auto found = last_pids_.find(local_rank);
  if (found == last_pids_.end()) return;
  for (const ProcessInfo& process : descendants_of(services_.keeper.pid())) {
    if (process.session == found->second) ::kill(process.pid, SIGKILL);
  }
}

void WorkerGroup::kill(int local_rank) {
  for (const auto& [id, worker] : workers_) {
    if (worker.local_rank == local_rank) services_.keeper.signal(id, SIGKILL);
  }
}

void WorkerGroup::signal(int number) {
  for (const auto& [id, worker] : workers_) services_.keeper.signal(id, number);
}

bool WorkerGroup::all_started() const {
  return std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.pid != 0; });
}

bool WorkerGroup::holds(int local_rank) const {
  return std::ranges::any_of(
      workers_, [&](const auto& entry) { return entry.second.local_rank == local_rank; });
}

std::optional<SlotPlace> WorkerGroup::place_of(pid_t pid) const {
  for (const auto& [id, worker] : workers_) {
    if (worker.pid == pid) return SlotPlace{.slot = worker.rank, .epoch = worker.epoch};
  }
  return std::nullopt;
}

std::optional<WorkerEnd> WorkerGroup::on(const KeeperEvent& event) {
  if (const auto* started = std::get_if<WorkerStarted>(&event)) {
    const auto found = workers_.find(started->id);
    if (found == workers_.end()) return std::nullopt;
    Worker& worker = found->second;
    worker.pid = started->pid;
    note_start(worker, /*was_spare=*/false);
    return std::nullopt;
  }
  if (const auto* refused = std::get_if<WorkerStartFailed>(&event)) {
    // What a shell returns for a command that it cannot find, or cannot run.
    return ended(refused->id, {.exit_code = refused->error == ENOENT ? 127 : 126}, refused->reason);
  }
  if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    return ended(exited->id, exited->status, "");
  }
  return std::nullopt;
}

std::optional<WorkerEnd> WorkerGroup::ended(std::uint64_t id, const ExitStatus& status,
                                            const std::string& reason) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return std::nullopt;
  const Worker worker = std::move(found->second);
  workers_.erase(found);
  if (worker.pid != 0) last_pids_[worker.local_rank] = worker.pid;
  WorkerEnd end{.epoch = worker.epoch, .local_rank = worker.local_rank, .code = 0, .details = ""};
  if (!status.success()) {
    end.code = exit_code_for(status);
    end.signal = status.signal;
    end.started = reason.empty();
    end.details = to_json(describe_failure(worker, status, reason));
  }
  services_.events.write({.kind = "worker_exit",
                          .epoch = worker.epoch,
                          .slot = worker.rank,
                          .fields = {{"pid", std::int64_t{worker.pid}},
                                     {"exit_code", std::int64_t{status.exit_code}},
                                     {"signal", std::int64_t{status.signal}}}});
  // Not closed yet: what a wrapper script has started may be saving, and would die of SIGPIPE.
  for (const auto& stream : {worker.stdout_stream, worker.stderr_stream}) {
    if (stream) ended_streams_[worker.local_rank].push_back(*stream);
  }
  return end;
}

void WorkerGroup::close_streams_of(int local_rank) {
  const auto streams = ended_streams_.extract(local_rank);
  if (!streams) return;
  for (const std::uint64_t stream : streams.mapped()) services_.pump.close(stream);
}

void WorkerGroup::close_ended_streams() {
  while (!ended_streams_.empty()) close_streams_of(ended_streams_.begin()->first);
}

WorkerFailure WorkerGroup::describe_failure(const Worker& worker, const ExitStatus& status,
                                            const std::string& reason) {
  WorkerFailure failure{.rank = worker.rank,
                        .local_rank = worker.local_rank,
                        .host = plan_.host,
                        .node_rank = worker.node_rank,
                        .pid = worker.pid,
                        .status = status,
                        .time = wall_time(std::chrono::system_clock::now()),
                        .error = std::nullopt,
                        .stderr_tail = {},
                        .log_path = worker.stderr_log,
                        .epoch = worker.epoch,
                        .restart_count = worker.restart_count};
  if (!reason.empty()) {
    failure.stderr_tail = {reason};
    return failure;
  }
  if (!worker.error_file.empty()) failure.error = read_error_file(worker.error_file);
  if (worker.stderr_stream) {
    failure.stderr_tail = services_.pump.tail(*worker.stderr_stream);
  } else if (!worker.stderr_log.empty()) {
    failure.stderr_tail = file_tail(worker.stderr_log);
  }
  return failure;
}

}  // namespace lockstep
