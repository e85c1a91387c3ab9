#include "launch/spare_pool.h"

#include <algorithm>
#include <csignal>

#include "core/exec_process.h"
#include "core/signal_names.h"
#include "launch/placement.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

// Far from the numbers of workers and their streams.
constexpr std::uint64_t kFirst = std::uint64_t{1} << 40;
constexpr int kMostEnds = 5;
constexpr seconds kLongLife{60};  // after which an end is not one more of a row
constexpr seconds kGrace{2};      // it has nothing to save

}  // namespace

SparePool::SparePool(const JobPlan& plan, Services services)
    : plan_(plan), services_(std::move(services)) {}

SparePool::~SparePool() {
  services_.loop.cancel(refill_);
  services_.loop.cancel(kill_);
}

void SparePool::fill(const Membership& membership) {
  membership_ = membership;
  if (stopped_ || given_up_ || ends_ > 0) return;  // where one ended, a timer will say when
  start_missing();
}

// No job fails for want of a spare.
void SparePool::start_missing() {
  try {
    while (std::cmp_less(spares_.size(), plan_.options.spares)) start_one();
  } catch (const Error& error) {
    give_up(error.what());
  }
}

void SparePool::give_up(const std::string& reason) {
  given_up_ = true;
  services_.say(concat("no more spares are started: ", reason,
                       "; a worker that dies is replaced by a fresh process"));
}

void SparePool::start_one() {
  const int number = ++last_number_;
  Spare spare{.id = kFirst + static_cast<std::uint64_t>(number),
              .number = number,
              .started = EventLoop::Clock::now(),
              .stdout_stream = kFirst + 2 * static_cast<std::uint64_t>(number),
              .stderr_stream = kFirst + 2 * static_cast<std::uint64_t>(number) + 1};
  // Of some worker of this node: what tells them apart is left out.
  Placement placement = place_worker(plan_, {membership_, "", 0, {}}, 0);
  placement.agent_socket = services_.agent_socket;
  placement.run_dir = services_.run_directory;
  placement.spare = true;
  WorkerSpec spec{.argv = plan_.command.argv(0), .environment = {}};
  for (const auto& [name, value] : variables_of_worker(plan_, placement)) {
    spec.environment.emplace(name, value);
  }
  StreamOptions held_back;
  held_back.held_back = true;
  const UniqueFd out = services_.pump.open(spare.stdout_stream, held_back);
  const UniqueFd err = services_.pump.open(spare.stderr_stream, held_back);
  spec.stdout_fd = out.get();
  spec.stderr_fd = err.get();
  services_.keeper.start(spare.id, spec);
  spares_.emplace(spare.id, spare);
}

bool SparePool::on(const KeeperEvent& event) {
  if (const auto* started = std::get_if<WorkerStarted>(&event)) {
    const auto found = spares_.find(started->id);
    if (found == spares_.end()) return false;
    found->second.pid = started->pid;
    services_.events.write({.kind = "spare_start",
                            .epoch = membership_.epoch,
                            .slot = std::nullopt,
                            .fields = {{"pid", std::int64_t{started->pid}}}});
    return true;
  }
  if (const auto* refused = std::get_if<WorkerStartFailed>(&event)) {
    if (!spares_.contains(refused->id)) return false;
    ended(refused->id, refused->reason);
    return true;
  }
  if (const auto* exited = std::get_if<WorkerExited>(&event)) {
    if (!spares_.contains(exited->id)) return false;
    ended(exited->id, exited->status.signal != 0
                          ? concat("ended by ", signal_name(exited->status.signal))
                          : concat("exit code ", exited->status.exit_code));
    return true;
  }
  return false;
}

void SparePool::ended(std::uint64_t id, const std::string& how) {
  const Spare spare = spares_.at(id);
  spares_.erase(id);
  services_.events.write(
      {.kind = "spare_exit",
       .epoch = membership_.epoch,
       .slot = std::nullopt,
       .fields = {{"pid", std::int64_t{spare.pid}}, {"how", how}, {"ready", spare.ready}}});
  std::string last_words;
  if (!stopped_) {
    for (const std::string& line : services_.pump.tail(spare.stderr_stream)) last_words = line;
  }
  close_streams(spare);
  if (stopped_ || given_up_) return;
  if (EventLoop::Clock::now() - spare.started > kLongLife) ends_ = 0;
  if (++ends_ < kMostEnds) return refill_later();
  give_up(concat(ends_, " ended one after the other (the last one: ", how,
                 last_words.empty() ? "" : concat(": ", last_words), ")"));
}

void SparePool::refill_later() {
  services_.loop.cancel(refill_);
  refill_ = services_.loop.after(services_.back_off * (1 << (ends_ - 1)), [this] {
    if (!stopped_ && !given_up_) start_missing();
  });
}

std::optional<int> SparePool::number_of(pid_t pid) const {
  for (const auto& [id, spare] : spares_) {
    if (spare.pid == pid) return spare.number;
  }
  return std::nullopt;
}

void SparePool::set_ready(int number) {
  for (auto& [id, spare] : spares_) {
    if (spare.number != number) continue;
    spare.ready = true;
    services_.events.write({.kind = "spare_ready",
                            .epoch = membership_.epoch,
                            .slot = std::nullopt,
                            .fields = {{"pid", std::int64_t{spare.pid}}}});
  }
}

std::optional<Spare> SparePool::take() {
  const auto found =
      std::ranges::find_if(spares_, [](const auto& entry) { return entry.second.ready; });
  if (found == spares_.end() || stopped_) return std::nullopt;
  const Spare spare = found->second;
  spares_.erase(found);
  ends_ = 0;
  return spare;
}

void SparePool::discard(const Spare& spare) {
  services_.keeper.signal(spare.id, SIGKILL);
  close_streams(spare);
}

void SparePool::stop() {
  if (stopped_ || spares_.empty()) {
    stopped_ = true;
    return;
  }
  stopped_ = true;
  services_.loop.cancel(refill_);
  for (const auto& [id, spare] : spares_) services_.keeper.signal(id, SIGTERM);
  kill_ = services_.loop.after(kGrace, [this] {
    for (const auto& [id, spare] : spares_) services_.keeper.signal(id, SIGKILL);
  });
}

void SparePool::forget() {
  services_.loop.cancel(refill_);
  services_.loop.cancel(kill_);
  for (const auto& [id, spare] : spares_) close_streams(spare);
  spares_.clear();
  ends_ = 0;
  stopped_ = false;
}

void SparePool::close_streams(const Spare& spare) {
  services_.pump.close(spare.stdout_stream);
  services_.pump.close(spare.stderr_stream);
}

}  // namespace lockstep
