// What a node does with workers that stand still or are slow: docs/recovery.md.
#include <sys/epoll.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "launch/node_shell.h"
#include "launch/stack_report.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kHangCheck{1};  // as often as workers are heard of
// A process that stands still can wait, the others cannot for long.
constexpr seconds kStackLimit{5};

std::string hang_file(const std::string& run_directory) {
  return run_directory + "/.hang.json";
}

std::string read_and_remove(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return text;
}

}  // namespace

/// A worker that was found.
struct NodeShell::Hang {
  std::uint64_t id = 0;  // of the worker's process
  int rank = 0;
  std::string what;   // for people
  std::string phase;  // in which it stands still; empty: it is silent
  std::int64_t step = 0;
  milliseconds time{0};
};

void NodeShell::watch_for_hangs() {
  if (plan_.options.hang_timeout.count() == 0 || !plan_.agent.terms.in_place()) return;
  const auto now = EventLoop::Clock::now();
  // If this comes late it was this process that stood still, and has not read what workers said.
  if (now - hang_check_ > 2 * kHangCheck) hangs_since_ = now;
  hang_check_ = now;
  hang_timer_ = services_.loop.after(kHangCheck, [this] { watch_for_hangs(); });
  if (hang_search_) return;  // one after the other
  for (const auto& [id, worker] : workers_.running()) {
    if (hung_.contains(id)) continue;
    const auto hang = hang_of(id, worker);
    if (!hang) continue;
    hung_.insert(id);
    return look_into_hang(*hang);
  }
}

std::optional<NodeShell::Hang> NodeShell::hang_of(std::uint64_t id,
                                                  const WorkerGroup::Worker& worker) const {
  const WorkerState* state = hub_.state(worker.rank);
  if (state == nullptr || !state->connected) return std::nullopt;
  if (!state->recovers && !worker.joins) return std::nullopt;  // nobody could take its place
  const std::string who = concat("rank ", worker.rank, " (process ", worker.pid, ") ");
  const auto silence = hang_check_ - std::max(state->heard, hangs_since_);
  if (silence > plan_.options.hang_timeout) {
    const std::string progress = progress_of(worker.rank);
    return Hang{
        .id = id,
        .rank = worker.rank,
        .what = concat(who, "gave no sign of life for ", duration_cast<seconds>(silence).count(),
                       " s", progress.empty() ? "" : " ", progress),
        .step = state->heartbeat.step,
        .time = duration_cast<milliseconds>(silence)};
  }
  const auto finding = hang_watch_.judge(worker.rank);
  if (!finding || agent_->phase() != NodePhase::running) return std::nullopt;
  return Hang{.id = id,
              .rank = worker.rank,
              .what = concat(who, "has been in '", finding->phase, "' of step ", finding->step,
                             " for ", duration_cast<seconds>(finding->alone).count(),
                             " s and waits for nobody (limit ",
                             duration_cast<seconds>(finding->limit).count(), " s)"),
              .phase = finding->phase,
              .step = finding->step,
              .time = finding->alone};
}

void NodeShell::look_into_hang(const Hang& hang) {
  note(concat(hang.what, ": it is killed"));
  try {
    hang_search_.emplace(SubprocessOptions{
        .argv = {"/proc/self/exe", "stack", "--here", services_.directory.path(), "--rank",
                 concat(hang.rank), "--limit", concat(kStackLimit.count())},
        .set_environment = {},
        .unset_environment = {},
        .stdout_path = hang_file(services_.directory.path()),
        .stderr_path = "/dev/null"});
  } catch (const Error&) {
    return end_hang(hang);  // without a stack
  }
  services_.loop.watch(hang_search_->pidfd(), EPOLLIN, [this, hang](std::uint32_t) {
    services_.loop.unwatch(hang_search_->pidfd());
    hang_search_->wait();
    hang_search_.reset();
    end_hang(hang);
  });
}

void NodeShell::end_hang(const Hang& hang) {
  std::string stack;
  const std::string found = read_and_remove(hang_file(services_.directory.path()));
  if (const auto stacks = node_stacks_from_json(found)) {
    for (const RankStack& each : stacks->ranks) {
      if (each.rank == hang.rank) stack = each.text;
    }
  }
  services_.events.write({.kind = "worker_hang",
                          .epoch = agent_->epoch(),
                          .slot = hang.rank,
                          .fields = {{"phase", hang.phase},
                                     {"step", hang.step},
                                     {"ms", std::int64_t{hang.time.count()}},
                                     {"stack", stack}}});
  if (workers_.running().contains(hang.id)) services_.keeper.signal(hang.id, SIGKILL);
  watch_keeper();
}

// ---- stragglers ----

void NodeShell::on_progress(int slot, const WorkerHeartbeat& beat) {
  hang_watch_.on_heartbeat(slot, beat);
  // Steps that were not measured say nothing.
  if (beat.work.steps > 0) straggler_watch_.on_heartbeat(slot, beat);
}

// Another process has this place now, or none.
void NodeShell::forget_progress(int slot) {
  hang_watch_.forget(slot);
  straggler_watch_.forget(slot);
}

void NodeShell::watch_for_stragglers() {
  if (plan_.options.straggler_time.count() == 0) return;
  straggler_timer_ = services_.loop.after(kHangCheck, [this] { watch_for_stragglers(); });
  for (const auto& slow : straggler_watch_.look(monotonic_now())) {
    note(StragglerWatch::in_words(slow));
    services_.events.write({.kind = "straggler",
                            .epoch = agent_->epoch(),
                            .slot = slow.rank,
                            .fields = {{"ratio", slow.ratio},
                                       {"phase", std::string(slow.in_data ? "data" : "compute")},
                                       {"part_us", std::int64_t{slow.part.count()}},
                                       {"own_us", std::int64_t{slow.own.count()}}}});
  }
}

}  // namespace lockstep
