// What a node does with its workers when some of them are replaced.
#include <sys/epoll.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/rank_list.h"
#include "launch/node_shell.h"
#include "launch/placement.h"
#include "launch/stack_report.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

constexpr seconds kHangCheck{1};
constexpr seconds kStackLimit{
    5};  // a process that stands still can wait, the others cannot for long

std::string hang_file(const std::string& run_directory) {
  return run_directory + "/.hang.json";
}

}  // namespace

void NodeShell::on_recovers(int slot, const WorkerRecovers& recovers) {
  perform(agent_->on_worker_recovers(
      local_rank_of(slot),
      {.epoch = recovers.epoch, .rank = slot, .step = recovers.step, .able = recovers.able},
      monotonic_now()));
  services_.events.write({.kind = "recovers",
                          .epoch = recovers.epoch,
                          .slot = slot,
                          .fields = {{"step", recovers.step}, {"able", recovers.able}}});
  fill_spares();
}

// Not before all workers of this node have begun to train, at the start and after a recovery: the
// processors are theirs until then, and a program that cannot be carried over needs no spare.
void NodeShell::fill_spares() {
  if (plan_.options.spares == 0 || agent_->phase() != NodePhase::running) return;
  for (int local_rank = 0; local_rank < plan_.workers; ++local_rank) {
    const int place = membership_.self().first_rank + local_rank;
    if (!membership_.is_in(place)) continue;
    const WorkerState* state = hub_.state(place);
    if (state == nullptr || !state->recovers || state->recovers->epoch != agent_->epoch()) return;
  }
  spares_.fill(membership_);
  watch_keeper();
}

std::optional<SlotPlace> NodeShell::place_of(pid_t pid) const {
  if (const auto place = workers_.place_of(pid)) return place;
  if (const auto spare = spares_.number_of(pid)) return SlotPlace{.spare = spare};
  return std::nullopt;
}

std::vector<int> NodeShell::places_of(const std::vector<int>& ranks) const {
  std::vector<int> places;
  for (const int rank : ranks) {
    if (const auto place = membership_.place_of(rank)) places.push_back(*place);
  }
  return places;
}

void NodeShell::on_rejected(int slot, const WorkerRejected& rejected) {
  // Ranks of a world that is no more may be others by now.
  if (rejected.epoch != 0 && rejected.epoch != membership_.epoch) return;
  const std::vector<int> places = places_of(rejected.ranks);
  services_.events.write(
      {.kind = "ranks_rejected",
       .epoch = agent_->epoch(),
       .slot = slot,
       .fields = {{"ranks", rank_numbers(places)}, {"reason", rejected.reason}}});
  perform(agent_->on_ranks_rejected({membership_.epoch, places, rejected.reason}, monotonic_now()));
}

// The heartbeat is up to a second old, so this is where it was heard of last.
std::string NodeShell::progress_of(int slot) const {
  const WorkerState* state = hub_.state(slot);
  if (state == nullptr || !state->recovers) return "";
  return concat("(last heard of at step ", std::max(state->heartbeat.step, state->recovers->step),
                ")");
}

void NodeShell::carry_out(const RevokeWorkers& revoke) {
  services_.events.write(
      {.kind = "revoked",
       .epoch = revoke.epoch,
       .slot = std::nullopt,
       .fields = {{"lost", rank_numbers(revoke.lost)}, {"reason", revoke.reason}}});
  const auto note_places = [&](const char* kind, const std::vector<int>& places) {
    for (const int place : places) {
      services_.events.write({.kind = kind, .epoch = revoke.epoch, .slot = place, .fields = {}});
    }
  };
  note_places("left_out", revoke.left_out);
  note_places("rejoins", revoke.rejoins);
  std::vector<int> lost_ranks;  // as those that live on know them
  for (const int place : revoke.lost) {
    if (membership_.is_in(place)) lost_ranks.push_back(membership_.rank_of(place));
  }
  const int first = membership_.self().first_rank;
  for (const int local_rank : revoke.survivors) {
    hub_.revoke(first + local_rank,
                {.epoch = revoke.epoch, .reason = revoke.reason, .lost_ranks = lost_ranks});
  }
  for (const int local_rank : revoke.killed) workers_.kill(local_rank);
}

// Those that live on. What they need is what a worker that is started finds in its environment.
void NodeShell::announce_world(const StartWorkers& start) {
  for (const auto& [id, worker] : workers_.running()) {
    if (worker.epoch == start.membership.epoch) {
      services_.events.write(
          {.kind = "replaced", .epoch = worker.epoch, .slot = worker.rank, .fields = {}});
      continue;
    }
    const Placement place = place_worker(plan_, start, worker.local_rank);
    hub_.announce(worker.rank, {.epoch = place.epoch,
                                .rank = place.rank,
                                .world_size = place.world_size,
                                .local_rank = place.local_rank,
                                .local_world_size = place.local_world_size,
                                .node_rank = place.group_rank,
                                .restart_count = place.restart_count,
                                .master_addr = place.master_addr,
                                .master_port = place.master_port,
                                .replaced_slots = start.replaced});
  }
}

void NodeShell::carry_out(const NoteRecovered& note) {
  const auto took = std::chrono::duration<double, std::milli>(note.recovered.since_loss);
  services_.events.write(
      {.kind = "recovered",
       .epoch = note.recovered.epoch,
       .slot = std::nullopt,
       .fields = {{"step", note.recovered.step}, {"ms_since_loss", took.count()}}});
}

// ---- hangs ----

void NodeShell::watch_for_hangs() {
  const auto limit = plan_.options.hang_timeout;
  if (limit.count() == 0 || !plan_.agent.terms.in_place()) return;
  const auto now = EventLoop::Clock::now();
  // If this comes late it was this process that stood still, and has not read what workers said.
  if (now - hang_check_ > 2 * kHangCheck) hangs_since_ = now;
  hang_check_ = now;
  hang_timer_ = services_.loop.after(kHangCheck, [this] { watch_for_hangs(); });
  if (hang_search_) return;  // one after the other
  for (const auto& [id, worker] : workers_.running()) {
    const WorkerState* state = hub_.state(worker.rank);
    if (state == nullptr || !state->connected || hung_.contains(id)) continue;
    if (!state->recovers && !worker.joins) continue;  // nobody could take its place
    const auto silence = now - std::max(state->heard, hangs_since_);
    if (silence <= limit) continue;
    hung_.insert(id);
    return look_into_hang(worker, std::chrono::duration_cast<seconds>(silence));
  }
}

void NodeShell::look_into_hang(const WorkerGroup::Worker& worker, seconds silence) {
  note(concat("rank ", worker.rank, " (process ", worker.pid, ") gave no sign of life for ",
              silence.count(), " s", progress_of(worker.rank).empty() ? "" : " ",
              progress_of(worker.rank), ": it is killed"));
  const int rank = worker.rank;
  std::uint64_t id = 0;
  for (const auto& [each, running] : workers_.running()) {
    if (running.rank == rank) id = each;
  }
  try {
    hang_search_.emplace(
        SubprocessOptions{.argv = {"/proc/self/exe", "stack", "--here", services_.directory.path(),
                                   "--limit", concat(kStackLimit.count())},
                          .set_environment = {},
                          .unset_environment = {},
                          .stdout_path = hang_file(services_.directory.path()),
                          .stderr_path = "/dev/null"});
  } catch (const Error&) {
    return end_hang(rank, id);  // without a stack
  }
  services_.loop.watch(hang_search_->pidfd(), EPOLLIN, [this, rank, id](std::uint32_t) {
    services_.loop.unwatch(hang_search_->pidfd());
    hang_search_->wait();
    hang_search_.reset();
    end_hang(rank, id);
  });
}

void NodeShell::end_hang(int rank, std::uint64_t id) {
  const std::string path = hang_file(services_.directory.path());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  std::string stack;
  if (const auto stacks = node_stacks_from_json(text.str())) {
    for (const RankStack& each : stacks->ranks) {
      if (each.rank == rank) stack = each.text;
    }
  }
  services_.events.write({.kind = "worker_hang",
                          .epoch = agent_->epoch(),
                          .slot = rank,
                          .fields = {{"stack", stack}}});
  if (workers_.running().contains(id)) services_.keeper.signal(id, SIGKILL);
  watch_keeper();
}

}  // namespace lockstep
