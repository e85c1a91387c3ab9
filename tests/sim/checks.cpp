#include "sim/checks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::sim {
namespace {

using namespace std::chrono_literals;
using Phase = Coordinator::Phase;

// How late a timer may be, and what rounding between clocks adds.
constexpr Time kSlack = 20ms;
// For what may keep a place from being tried again when its time has come: new workers load, words
// are awaited, connections are made again.
constexpr Time kLongestStandstill = 30s;

// The epoch that a message is about, where it acts within one.
std::optional<Epoch> epoch_of(const Message& message) {
  if (const auto* ready = std::get_if<Ready>(&message)) return ready->epoch;
  if (const auto* failed = std::get_if<WorkerFailed>(&message)) return failed->epoch;
  if (const auto* succeeded = std::get_if<WorkersSucceeded>(&message)) return succeeded->epoch;
  if (const auto* prepare = std::get_if<Prepare>(&message)) return prepare->membership.epoch;
  if (const auto* start = std::get_if<Start>(&message)) return start->epoch;
  if (const auto* stop = std::get_if<Stop>(&message)) return stop->epoch;
  if (const auto* recovers = std::get_if<RankRecovers>(&message)) return recovers->epoch;
  if (const auto* cannot = std::get_if<CannotReform>(&message)) return cannot->epoch;
  if (const auto* recovered = std::get_if<Recovered>(&message)) return recovered->epoch;
  return std::nullopt;
}

// What all nodes of an epoch are told alike.
Membership without_place(const Membership& membership) {
  return {.epoch = membership.epoch,
          .restart_count = membership.restart_count,
          .group_world_size = membership.group_world_size,
          .places = membership.places,
          .role_world_size = membership.role_world_size,
          .left_out = membership.left_out};
}

}  // namespace

Tally& Tally::operator+=(const Tally& other) {
  epochs += other.epochs;
  restarts += other.restarts;
  recoveries += other.recoveries;
  left_out += other.left_out;
  rejoined += other.rejoined;
  reseated += other.reseated;
  rejoined_at_work += other.rejoined_at_work;
  coordinators += other.coordinators;
  recalled += other.recalled;
  succeeded += other.succeeded;
  failed += other.failed;
  refused += other.refused;
  warned += other.warned;
  return *this;
}

// ---- the coordinator ----

void Checks::coordinator_started(int life, const std::optional<CoordinatorRecord>& record,
                                 Time local_now) {
  life_ = life;
  record_ = record;
  last_epoch_ = 0;
  told_epoch_ = record ? record->epoch : 0;
  told_restarts_ = 0;
  gathering_since_ = local_now;
  finish_.reset();
  warnings_ = {};
  if (record && record->time_left) warnings_.recalled(*record->time_left);
  told_.clear();
  ++tally_.coordinators;
}

Checks::CoordinatorView Checks::recalled(const CoordinatorView& before,
                                         const CoordinatorView& after, const Message* message,
                                         Time local_now) {
  const auto* join = message == nullptr ? nullptr : std::get_if<Join>(message);
  recalled_now_ = false;
  if (!before.recalls || after.recalls || join == nullptr) return before;
  const CoordinatorRecord record = *std::exchange(record_, std::nullopt);
  told_restarts_ = std::max(told_restarts_, record.restarts);
  if (join->epoch > record.epoch) return before;
  recalled_now_ = true;
  take_over_epoch(record.epoch);
  last_epoch_ = record.epoch;
  last_epoch_since_ = local_now;
  ++tally_.recalled;
  using Recorded = CoordinatorRecord::Phase;
  CoordinatorView view = before;
  view.phase = record.phase == Recorded::preparing ? Phase::preparing
               : record.phase == Recorded::running ? Phase::running
                                                   : Phase::stopping;
  view.epoch = record.epoch;
  view.restarts = record.restarts;
  view.replacements = record.replacements;
  view.at_work =
      view.phase == Phase::running || (view.phase == Phase::preparing && record.carries_over);
  return view;
}

// What the coordinator before has formed is this one's.
void Checks::take_over_epoch(Epoch epoch) {
  int former = 0;
  for (const auto& [key, formed] : formed_) {
    if (key.second == epoch) former = std::max(former, key.first);
  }
  require(former != 0, "a record tells of epoch ", epoch, ", which nobody has formed");
  auto formed = formed_.extract({former, epoch});
  formed.key().first = life_;
  formed_.insert(std::move(formed));
  if (cost_restart_.contains({former, epoch})) cost_restart_.emplace(life_, epoch);
  for (auto& [id, life] : started_under_) {
    if (life == former) life = life_;
  }
}

void Checks::coordinator_heard(const Message& message, const CoordinatorView& before,
                               const CoordinatorView& after) {
  const auto* join = std::get_if<Join>(&message);
  if (join != nullptr) {
    told_epoch_ = std::max(told_epoch_, join->epoch);
    told_restarts_ = std::max(told_restarts_, join->restart_count);
    if (join->phase == NodePhase::running) ++tally_.rejoined_at_work;
  }
  if (const auto* signal = std::get_if<PassSignal>(&message)) warnings_.heard(*signal);
  const auto* recovers = std::get_if<RankRecovers>(&message);
  if (recovers != nullptr && recovers->epoch == last_epoch_ && !recovers->able) one_ends_ = true;
  const auto about = epoch_of(message);
  require(!about || *about == before.epoch || before == after, "a message about epoch ",
          about.value_or(0), " changed epoch ", before.epoch);
  const bool of_worker =
      std::holds_alternative<WorkerFailed>(message) ||
      std::holds_alternative<CannotReform>(message) ||
      (join != nullptr && !join->failures.empty() && join->epoch == before.epoch &&
       (join->phase == NodePhase::running || join->phase == NodePhase::reforming));
  // In the event in which a coordinator goes on, the loss of its former node may be the reason.
  const bool is_reason = !recalled_now_ || after.restarts > before.restarts;
  if (of_worker && before.at_work && !after.at_work && is_reason) cost_restart(before, after);
  const auto* failed = std::get_if<WorkerFailed>(&message);
  if (failed != nullptr && failed->code == 75 && failed->epoch == before.epoch && before.at_work) {
    current(before.epoch).is_last = true;
  }
}

void Checks::coordinator_acted(const CoordinatorView& before, const CoordinatorView& after,
                               Time local_now) {
  require(after.epoch >= before.epoch, "the coordinator went from epoch ", before.epoch, " to ",
          after.epoch);
  require(after.restarts <= scenario_.terms.max_restarts, "restart ", after.restarts, " of ",
          scenario_.terms.max_restarts);
  require(after.restarts <= before.restarts + 1 || after.restarts <= told_restarts_,
          "one event cost more than one restart");
  // A job of fixed size has failed when a member is lost at work, whatever the reason.
  if (before.at_work && !after.at_work && !scenario_.terms.elastic()) cost_restart(before, after);
  // Of those that were to live on, one could not. What a node tells of restarts under an earlier
  // coordinator is none of that.
  const bool was_to_go_on = before.phase == Phase::preparing || before.holds_loss;
  const bool restarts = after.restarts > std::max(before.restarts, told_restarts_);
  if (before.at_work && was_to_go_on && restarts) {
    cost_restart(before, after);
  }
  require(after.restarts == 0 || !must_go_on(),
          "all workers are restarted although the job could have gone on in place");
  check_rejoining(after, local_now);
  require(after.replacements <= scenario_.terms.max_replacements, "replacement ",
          after.replacements, " of ", scenario_.terms.max_replacements);
  if (before.phase != Phase::gathering &&
      (after.phase == Phase::gathering || after.epoch != before.epoch)) {
    gathering_since_ = local_now;
  }
}

void Checks::check_rejoining(const CoordinatorView& view, Time local_now) const {
  const bool may = view.phase == Phase::running && view.epoch == last_epoch_ && view.left_out > 0 &&
                   view.replacements < scenario_.terms.max_replacements && !ends_without_one_;
  const Time longest = 16 * scenario_.coordinator.rejoin_after + kLongestStandstill;
  require(!may || local_now - last_epoch_since_ <= longest, view.left_out,
          " places were left out of epoch ", view.epoch, " and are never tried again");
}

// Of several nodes that are lost at once the first may begin an epoch that the next one ends.
void Checks::cost_restart(const CoordinatorView& before, const CoordinatorView& after) {
  cost_restart_.emplace(life_, after.phase == Phase::preparing ? before.epoch : after.epoch);
}

Checks::Formed& Checks::current(Epoch epoch) {
  const auto found = formed_.find({life_, epoch});
  require(found != formed_.end(), "epoch ", epoch, " was never formed by coordinator ", life_);
  return found->second;
}

void Checks::coordinator_said(const std::string& text) {
  if (text.find("cannot go on in place") != std::string::npos) said_why_ = true;
}

// All nodes of a job of fixed size reach each other where they are told to.
void Checks::check_network(const Membership& membership) const {
  if (scenario_.terms.elastic() || membership.group_world_size < 2) return;
  const NodePlace& place = membership.self;
  const auto index = static_cast<std::size_t>(std::stoi(place.host.substr(1)));
  require(!place.address.starts_with("10.0.") || !scenario_.nodes[index].dead_address, place.host,
          " is a member of epoch ", membership.epoch, " at ", place.address,
          ", where nobody reaches it");
  require(!place.address.starts_with("10.1.") || scenario_.second_network, place.host, " is at ",
          place.address, ", which it does not have");
}

void Checks::coordinator_sent(const std::string& node_id, const Message& message, Time local_now) {
  if (const auto* finish = std::get_if<Finish>(&message)) {
    if (!finish_) {
      finish_ = *finish;
      if (finish->code == 0) check_success();
      finish->code == 0 ? ++tally_.succeeded : ++tally_.failed;
      require(
          finish->reason.find("no network joins") == std::string::npos || !scenario_.has_network(),
          "there is a network: ", finish->reason);
      require(finish->reason.find("questions about the network") == std::string::npos,
              "all answer: ", finish->reason);
      require(finish->code == 0 || !must_go_on() ||
                  finish->reason.find("the second time") != std::string::npos,
              "the job failed although it could have gone on in place: ", finish->reason);
    }
    require(encode(*finish_) == encode(*finish), "two nodes are told different ends");
    told_.try_emplace(node_id, 0);
  }
  if (const auto* refused = std::get_if<Refused>(&message)) {
    ++tally_.refused;
    // A job that may change its size does without a node that the others do not reach.
    const bool is_out_of_reach = scenario_.terms.elastic() && !scenario_.has_network() &&
                                 refused->reason.find("no network joins") != std::string::npos;
    require(finish_ || is_stranger(node_id) || is_out_of_reach, node_id,
            " was refused: ", refused->reason);
  }
  if (const auto* signal = std::get_if<PassSignal>(&message)) {
    const std::string wrong = warnings_.sent(node_id, *signal);
    require(wrong.empty(), node_id, " ", wrong);
  }
  const auto* prepare = std::get_if<Prepare>(&message);
  if (prepare == nullptr) return;
  const Membership& membership = prepare->membership;
  check_membership(membership);
  if (!formed_.contains({life_, membership.epoch})) check_new_epoch(*prepare, local_now);
  Formed& formed = current(membership.epoch);
  require(formed.common == without_place(membership), "two views of epoch ", membership.epoch);
  check_seat(formed, membership.group_rank, membership.self);
  for (std::size_t i = 0; i < membership.nodes.size(); ++i) {
    check_seat(formed, static_cast<int>(i), membership.nodes[i]);
  }
  const auto [place, is_new] = formed.ids.try_emplace(membership.group_rank, node_id);
  require(is_new || place->second == node_id, "group rank ", membership.group_rank, " of epoch ",
          membership.epoch, " was given to ", place->second, " and to ", node_id);
  formed.members.insert(node_id);
  if (is_new && membership.local_workers() > 0) formed.awaited.insert(node_id);
  const std::set<int> replaced(prepare->replaced.begin(), prepare->replaced.end());
  // Ranks that have state by now are not replaced again when it is said once more.
  require(prepare->carries_over == formed.carries_over &&
              std::ranges::includes(formed.replaced, replaced),
          "two views of who is replaced in epoch ", membership.epoch);
  if (prepare->carries_over) return;  // others live on
  check_network(membership);
  const auto processes = processes_.find(node_id);
  require(processes == processes_.end() || processes->second == 0, node_id,
          " is made a member of epoch ", membership.epoch, " although it still has workers");
}

// Nodes are called "n3.2": the second process on node 3.
bool Checks::is_stranger(const std::string& node_id) const {
  const std::size_t index = std::stoul(node_id.substr(1));
  return scenario_.nodes[index].other_run_id;
}

void Checks::check_membership(const Membership& membership) const {
  require(membership.nodes.empty() ||
              std::cmp_equal(membership.nodes.size(), membership.group_world_size),
          "a list of ", membership.nodes.size(), " of ", membership.group_world_size, " nodes");
  require(membership.nodes.empty() == (membership.group_rank != 0), "group rank ",
          membership.group_rank, " is told of ", membership.nodes.size(), " nodes");
  const int least = scenario_.terms.min_world;
  require(membership.left_out.empty() || (least > 0 && membership.world_size() >= least), "epoch ",
          membership.epoch, " goes on with ", membership.world_size(), " workers; at least ", least,
          " are needed");
  const int nodes = membership.group_world_size;
  require(nodes >= scenario_.terms.min_nodes && nodes <= scenario_.terms.max_nodes, "epoch ",
          membership.epoch, " has ", nodes, " nodes");
}

// Ranks are a bijection, and where workers are taken over, places stay what they were. A node that
// was lost may be another one now.
void Checks::check_seat(Formed& formed, int group_rank, const NodePlace& place) const {
  const auto [seat, is_new] = formed.seats.try_emplace(group_rank, place);
  const Epoch epoch = formed.common.epoch;
  if (group_rank == 0) formed.store_address = place.address;
  if (formed.carried.erase(group_rank) > 0) {
    Membership before{
        .places = formed.common.places, .self = seat->second, .left_out = formed.left_out_before};
    require(seat->second.workers == place.workers && seat->second.first_rank == place.first_rank &&
                (seat->second == place || before.local_workers() == 0),
            "epoch ", epoch, " takes workers over, but node ", group_rank,
            " is another than before");
    seat->second = place;
    return;
  }
  require(seat->second == place, "two views of node ", group_rank, " of epoch ", epoch);
  if (!is_new) return;
  const auto fits = [&](int rank, int first) {
    require(rank == first, "ranks of epoch ", epoch, " are no bijection: ", place.host,
            " begins with ", place.first_rank);
  };
  if (group_rank == 0) fits(place.first_rank, 0);
  if (group_rank == formed.common.group_world_size - 1) {
    fits(place.first_rank + place.workers, formed.common.places);
  }
  const auto next = formed.seats.find(group_rank + 1);
  if (next != formed.seats.end()) fits(place.first_rank + place.workers, next->second.first_rank);
  const auto before = formed.seats.find(group_rank - 1);
  if (before != formed.seats.end()) {
    fits(place.first_rank, before->second.first_rank + before->second.workers);
  }
}

void Checks::check_reformed(const Prepare& prepare, const Formed& before, Time local_now) {
  const Membership& now = prepare.membership;
  require(now.restart_count == before.common.restart_count && now.places == before.common.places &&
              now.group_world_size == before.common.group_world_size,
          "epoch ", now.epoch, " takes workers over, but places are others than before");
  require(static_cast<int>(prepare.replaced.size()) < now.world_size(), "epoch ", now.epoch,
          " replaces all workers at once and calls it recovery");
  const std::set<int> replaced(prepare.replaced.begin(), prepare.replaced.end());
  for (int place = 0; place < now.places; ++place) {
    require(now.is_in(place) || !replaced.contains(place), "place ", place, " of epoch ", now.epoch,
            " is left out and filled");
    require(before.common.is_in(place) || !now.is_in(place) || replaced.contains(place), "place ",
            place, " of epoch ", now.epoch, " was left out and nobody fills it");
    if (before.common.is_in(place) && !now.is_in(place)) {
      left_out_since_[place] = local_now;
      ++tally_.left_out;
    } else if (!before.common.is_in(place) && now.is_in(place)) {
      const Time pause = local_now - left_out_since_.at(place);
      const int node = std::ranges::find_if(before.seats, [&](const auto& seat) {
                         return place < seat.second.first_rank + seat.second.workers;
                       })->first;
      // A node that comes back is taken at once.
      require(pause >= scenario_.coordinator.rejoin_after || !before.ids.contains(node), "place ",
              place, " is tried again after only ", pause.count(), " ns");
      require(!one_ends_, "place ", place, " is tried again although a worker ends");
      ++tally_.rejoined;
    }
  }
}

void Checks::check_new_epoch(const Prepare& prepare, Time local_now) {
  const Membership& membership = prepare.membership;
  require(membership.epoch > last_epoch_, "epoch ", membership.epoch, " after ", last_epoch_);
  require(membership.epoch > told_epoch_, "epoch ", membership.epoch,
          " although a node or a record has told of epoch ", told_epoch_);
  const int nodes = membership.group_world_size;
  bool may_be_smaller = false;     // without a last call
  std::map<int, NodePlace> seats;  // that are kept
  std::vector<int> left_out_before;
  if (last_epoch_ != 0) {
    Formed& before = current(last_epoch_);
    require(!before.is_last, "epoch ", membership.epoch, " although a worker ended with 75");
    // Epochs that nobody heard of, because nobody was connected, count as well.
    const auto cost =
        static_cast<int>(std::distance(cost_restart_.lower_bound({life_, last_epoch_}),
                                       cost_restart_.lower_bound({life_, membership.epoch})));
    const int counted = before.common.restart_count;
    // In the meantime a node may have told of restarts under an earlier coordinator.
    require(membership.restart_count >= counted + cost &&
                membership.restart_count <= std::max(counted, told_restarts_) + cost,
            "epoch ", membership.epoch, " counts ", membership.restart_count, " restarts after ",
            counted, "; ", cost, " more was needed");
    may_be_smaller = nodes >= before.common.group_world_size;
    if (prepare.carries_over) check_reformed(prepare, before, local_now);
    if (prepare.carries_over) seats = std::move(before.seats);
    left_out_before = before.common.left_out;
    tally_.restarts += cost;
  }
  require(nodes == scenario_.terms.max_nodes || may_be_smaller ||
              local_now - gathering_since_ >= scenario_.coordinator.last_call,
          "epoch ", membership.epoch, " was formed before the end of the last call");
  last_epoch_ = membership.epoch;
  last_epoch_since_ = local_now;
  one_ends_ = false;
  Formed& formed = formed_[{life_, membership.epoch}];
  formed.common = without_place(membership);
  for (const auto& [group_rank, seat] : seats) formed.carried.insert(group_rank);
  if (!seats.empty()) formed.store_address = seats.at(0).address;
  formed.seats = std::move(seats);
  formed.left_out_before = std::move(left_out_before);
  formed.carries_over = prepare.carries_over;
  formed.replaced.insert(prepare.replaced.begin(), prepare.replaced.end());
  ++tally_.epochs;
}

void Checks::check_success() const {
  const Formed& last = formed_.at({life_, last_epoch_});
  for (const auto& [rank, id] : last.ids) {
    const auto found = last.succeeded.find(id);
    const int succeeded = found == last.succeeded.end() ? 0 : found->second;
    Membership membership = last.common;
    membership.self = last.seats.at(rank);
    const int workers = membership.local_workers();
    require(succeeded == workers, "the job succeeded, but only ", succeeded, " of ", workers,
            " workers of ", id);
  }
}

void Checks::join_answered_at_end(bool answered) {
  require(answered, "a node came back after the end and was not told of it");
}

// ---- nodes ----

void Checks::agent_heard(const std::string& id, const Message& message, const AgentView& before,
                         const AgentView& after) {
  const auto about = epoch_of(message);
  if (!about) return;
  require(*about >= before.epoch || before == after, id, ": a message about epoch ", *about,
          " changed epoch ", before.epoch);
  if (std::holds_alternative<Stop>(message) && *about >= before.epoch) {
    require(after.phase == NodePhase::stopping || after.phase == NodePhase::idle, id,
            " does not stop epoch ", before.epoch);
  }
}

void Checks::agent_moved(const std::string& id, const AgentView& before, const AgentView& after) {
  require(after.epoch >= before.epoch, id, " went from epoch ", before.epoch, " to ", after.epoch);
  if (after.epoch == before.epoch) return;
  Formed& formed = current(after.epoch);
  require(formed.members.contains(id), id, " is no member of epoch ", after.epoch);
  formed.awaited.erase(id);
}

void Checks::store_opened(const std::string& id, Epoch epoch, int port) {
  // Of an epoch that the next coordinator has not taken over yet, it is the one before's.
  const bool is_of_record = record_ && record_->epoch == epoch;
  for (auto& [key, formed] : formed_) {
    if (key.second == epoch && (key.first == life_ || is_of_record)) {
      formed.store_ports[id] = port;
    }
  }
}

void Checks::workers_started(const WorkersStart& node, const StartWorkers& start) {
  const Epoch epoch = start.membership.epoch;
  require(node.processes == 0, node.id, " starts workers of epoch ", epoch, " beside ",
          node.processes, " other processes");
  const Formed& formed = current(epoch);
  require(formed.common == without_place(start.membership), node.id,
          " starts workers with another view of epoch ", epoch);
  require(formed.awaited.empty(), node.id, " starts workers of epoch ", epoch,
          " although not all of its nodes are ready");
  const bool local = scenario_.terms.local_store;
  const auto store = formed.store_ports.find(local ? node.id : formed.ids.at(0));
  const int port = store == formed.store_ports.end() ? 0 : store->second;
  require(start.master_port != 0 && start.master_port == port, node.id,
          " starts workers with the store's port ", start.master_port, " instead of ", port);
  require(start.master_addr == (local ? "127.0.0.1" : formed.store_address), node.id,
          " starts workers with the store at ", start.master_addr);
  // The next epoch of those that live on is begun at once, and this start may still be on its way.
  require(!node.link_is_open || epoch == last_epoch_ || start.carries_over, node.id,
          " starts workers of epoch ", epoch, " in epoch ", last_epoch_);
  started_under_[node.id] = life_;
  if (start.carries_over && start.begins) ++tally_.reseated;
}

void Checks::worker_succeeded(const std::string& id, Epoch epoch) {
  const auto found = formed_.find({started_under_[id], epoch});
  if (found != formed_.end()) ++found->second.succeeded[id];
}

void Checks::second_stop_signal(const std::string& id, int spared) {
  require(spared == 0, id, " does not kill ", spared, " workers at the second signal");
}

void Checks::worker_runs(const std::string& id, const WorkerTimes& times) {
  if (times.stuck) return;
  const AgentOptions& options = scenario_.agent;
  if (times.since_signal) {
    require(*times.since_signal <= options.grace + 1s, id,
            " lets a worker live that does not end by itself");
  } else {
    require(times.silence <= options.terms.beat_limit + 2 * options.terms.beat_interval + kSlack,
            id, " goes on although it is cut off");
  }
}

void Checks::agent_done(const std::string& id, const Finish& finish, int processes) {
  require(processes == 0, id, " ends and leaves ", processes, " processes");
  require(finish.code != 0 || (finish_ && finish_->code == 0), id,
          " reports success without having been told");
  if (told_.contains(id) && !excused_.contains(id)) {
    require(finish.code == finish_->code, id, " ends with ", finish.code, ", the job with ",
            finish_->code);
  }
}

void Checks::connection_breaks(const std::string& id, bool both_learn) {
  const auto told = told_.find(id);
  // Who knows that its connection broke can come back and hear the end; for how often, there is a
  // limit.
  if (!both_learn || (told != told_.end() && ++told->second > 1)) excused_.insert(id);
}

void Checks::time_limit_passed(const std::string& who_is_left) {
  throw Violation("the job does not end: " + who_is_left);
}

}  // namespace lockstep::sim
