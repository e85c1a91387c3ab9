// How TrainerCore goes on when ranks have died and others have taken their places:
// docs/recovery.md.
#include <algorithm>
#include <chrono>
#include <utility>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "archive/snapshot_directory.h"
#include "comm/recovery.h"
#include "core/rank_list.h"
#include "train/carry_over.h"
#include "train/loader_facts.h"
#include "train/state_transfer.h"
#include "train/trainer_core.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

template <typename T>
json optional_json(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

json reason_json(const std::optional<StopReason>& reason) {
  return reason ? json(static_cast<int>(*reason)) : json();
}

std::optional<StopReason> reason_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  return static_cast<StopReason>(value.get<int>());
}

std::string milliseconds_text(Clock::duration time) {
  return concat(std::chrono::duration_cast<std::chrono::milliseconds>(time).count(), " ms");
}

}  // namespace

// Why what this process computes cannot be computed again elsewhere; empty where it can.
std::string TrainerCore::obstacle_to_recovery() const {
  if (has_group_of_its_own(*module_, world_.group())) {
    return "a SyncBatchNorm communicates in a group of its own";
  }
  if (options_.cuda_graph && share_.slots > 1) {
    return "its steps are recorded, and NCCL cannot be broken off before they are forgotten; all "
           "ranks go on from the newest snapshot instead, as often as --max-restarts allows";
  }
  if (options_.shard && !has_parts_elsewhere()) {
    return "its part of the model is nowhere else; all ranks go on from the newest snapshot "
           "instead, as often as --max-restarts allows";
  }
  const bool replayable =
      task_.data().replayable() && (evaluation_ == nullptr || evaluation_->data().replayable());
  return replayable ? "" : "the data comes from a source that cannot deliver a batch again";
}

// The same on all ranks, which then do the same for it: the launcher may not have answered one.
bool TrainerCore::all_are_replaced() {
  const bool matters =
      options_.shard || !std::holds_alternative<std::monostate>(options_.compression);
  if (!matters) return false;
  const bool here = can_recover(world_) && obstacle_to_recovery().empty();
  const std::vector<json> all = world_.group().all_gather_json(here);
  return std::ranges::all_of(all, [](const json& each) { return each.get<bool>(); });
}

bool TrainerCore::recoverable() {
  const std::string obstacle = obstacle_to_recovery();
  if (options_.shard && options_.shard->peer_copies && !agrees_to_updates_) {
    say("lockstep: no copies of parts are kept (peer_copies): no rank that dies is replaced in "
        "place here");
  }
  if (!obstacle.empty()) {
    if (can_recover(world_)) {
      say(concat("lockstep: a rank that dies cannot be replaced in place: ", obstacle));
    }
    return false;
  }
  // Without an agreement before each update one could be left behind that cannot follow.
  if (task_.sharded() != nullptr && !agrees_to_updates_) return false;
  if (task_.sharded() != nullptr) say(who_has_a_dead_ranks_part());
  if (const auto& compression = state_->compression();
      compression && keeps_error(options_.compression) && !compression->place().mirrored &&
      share_.slots > 1 && can_recover(world_)) {
    say("lockstep: compression with error feedback: what a rank that dies has not sent yet is "
        "lost, "
        "so recovery is not bit-identical (mirror_errors = always makes it so, at the price of the "
        "bytes saved)");
  }
  const DataParallelEngine* engine = task_.engine();
  if (engine != nullptr && engine->reduction() == Reduction::native && share_.slots > 2 &&
      can_recover(world_)) {
    say("lockstep: reduction native: after a recovery the bits may differ from those of an "
        "undisturbed run");
  }
  return true;
}

// Called with a failure at hand: whether it comes from ranks that the launcher replaces.
bool TrainerCore::others_were_lost() {
  if (ended_ || !recovers_) return false;
  return ranks_were_lost(world_, [this] {
    const StopCause cause = stop_.cause();
    return cause == StopCause::signal || cause == StopCause::launcher;
  });
}

// Until all ranks hold the same state again, whatever happens meanwhile.
void TrainerCore::carry_over(bool formed) {
  world_.report(state_->position.step, "recover");
  while (true) {
    const auto begin = Clock::now();
    try {
      if (!formed) {
        world_.abort();  // before what it holds on to goes
        gradients_.reset();
        transactions_.reset();
        sums_.reset();
        // A compression may still be at work in a thread of its own.
        if (state_->compression()) task_.stop_distributing();
        reform(world_);
      }
      return agree_on_state(Clock::now() - begin);
    } catch (const InvalidArgument&) {
      throw;
    } catch (const std::exception&) {
      if (!others_were_lost()) throw;
    }
    formed = false;
  }
}

void TrainerCore::agree_on_state(Clock::duration forming) {
  const auto begin = Clock::now();
  curves_.flush();  // another process may have to go on with its file
  const Takeover taken = task_.sharded() != nullptr ? take_over_parts() : take_over();
  has_state_ = true;  // from now on others can get it here, whatever comes of the rest
  const auto transferred = Clock::now();
  readmit_to_snapshots(taken.takes);
  verify_state(taken);
  join_group(*module_, world_.group());
  make_step_parts(/*formed_again=*/true);
  save_in_doubt_ = false;
  const auto ms = [](Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  json gave = json::array();
  std::size_t bytes_sent = 0;
  for (const Takeover::Gift& gift : taken.gifts) {
    bytes_sent += gift.bytes * gift.takers.size();
    gave.push_back({{"what", gift.what}, {"to", gift.takers}, {"bytes", gift.bytes}});
  }
  curves_.event("recovered", {{"step", state_->position.step},
                              {"world_size", world_.world_size()},
                              {"epoch", world_.epoch()},
                              {"took_state", taken.takes},
                              {"gave", gave},
                              {"bytes_sent", bytes_sent},
                              {"forming_ms", ms(forming)},
                              {"transfer_ms", ms(transferred - begin)},
                              {"check_ms", ms(Clock::now() - transferred)}});
  tell_gifts(taken, concat("formed again in ", milliseconds_text(forming), ", sent in ",
                           milliseconds_text(transferred - begin), ", checked in ",
                           milliseconds_text(Clock::now() - transferred)));
  commit_to_recovery(world_, state_->position.step);
}

void TrainerCore::tell_gifts(const Takeover& taken, const std::string& times) {
  std::string text;
  std::vector<int> takers;
  for (const Takeover::Gift& gift : taken.gifts) {
    if (!text.empty()) text += " and ";
    if (gift.takers != takers) text += list_ranks(gift.takers) + " ";
    takers = gift.takers;
    text += concat(gift.what, " (", short_number(static_cast<double>(gift.bytes)),
                   takers.size() > 1 ? "B each)" : "B)");
  }
  if (!text.empty()) warn(concat("lockstep: rank ", world_.rank(), " gave ", text, ": ", times));
}

TrainerCore::Takeover TrainerCore::take_over() {
  ProcessGroup& group = world_.group();
  const bool is_whole = has_state_ && !state_given_up_;
  const Standing standing =
      compare_commits(group, is_whole ? std::optional(commits_) : std::nullopt);
  HandedState handed =
      hand_over(group, standing,
                {.offer =
                     [this] {
                       return HandedState{.state = state_->snapshot(share_, world_.epoch()),
                                          .values = progress_values()};
                     },
                 .give_up = [this](const StateOffer& offer) { return give_up_state(offer); }});

  // Up to the next collective nothing can come between.
  const bool takes = standing.takes(group.rank());
  if (takes) take_state(std::move(handed.state), handed.values);
  adopt(handed.values);
  Takeover taken{.source = standing.source, .takes = takes};
  if (handed.bytes > 0) taken.gifts = {{"its state", standing.takers, handed.bytes}};
  return taken;
}

// The values that a run has beside its state, and whom and what follows from them.
void TrainerCore::adopt(const json& values) {
  const std::int64_t had_commits = commits_;
  if (has_state_) share_out_again();
  take_progress_values(values);
  assume_role();
  curves_.stand_back(is_main());
  for (const RunEvent& event : journal_.events()) {
    if (has_state_ && event.commit > had_commits) tell(event);
  }
  curves_.follow(is_main(), {.lines = log_lines_, .step = state_->position.step}, journal_);
  introduce_tracker();
}

// What is received goes straight into place where there is nothing to lose, or no memory for both.
Snapshot TrainerCore::give_up_state(const StateOffer& offer) {
  if (has_state_ && offer.fits_in_memory()) return {};
  if (!has_state_) make_room(state_->optimizer(), offer.part("optimizer"));
  state_given_up_ = true;
  return state_->parts();
}

void TrainerCore::take_state(Snapshot state, const json& values) {
  if (has_state_) {
    // Callbacks have a state already, and are told what they have missed.
    erase_callback_parts(state);
  } else {
    replaces_ranks_ = values.at("replaces_ranks");
    share_out(state.slots);  // first: how the data is dealt is a part of what is compared
    const json& data = values.at("data");
    if (const json facts = facts_of(task_.data()); facts != data) {
      throw InvalidArgument(concat(
          "this process replaces another, but its loader is not that of the others: ", facts.dump(),
          ", there ", data.dump()));
    }
  }
  state_->restore(state, "the other ranks' memory");
  state_given_up_ = false;
}

// Of a sharded run, where this rank has the part that belongs to them.
void TrainerCore::take_values(Snapshot state) {
  erase_callback_parts(state);
  state_->restore_values(state, "the other ranks' memory");
}

// What a run knows beside its state, the same on every rank.
json TrainerCore::progress_values() const {
  json saved;
  if (saved_) saved = {saved_->first, saved_->second};
  return {{"commits", commits_},
          {"updates", updates_},
          {"duties", {duties_.compare, duties_.evaluate, duties_.save, duties_.best}},
          {"reason", reason_json(reason_)},
          {"stop_after_step", reason_json(stop_after_step_)},
          {"saved", saved},
          {"saved_best", saved_best_},
          {"log_lines", log_lines_},
          {"counted", counted_},
          {"next_talk", next_talk_},
          {"metric_names", optional_json(metric_names_)},
          {"loss", optional_json(result_.loss)},
          {"evaluation", result_.evaluation},
          {"resumed_from", result_.resumed_from},
          {"journal", journal_.to_json()},
          {"replaces_ranks", replaces_ranks_},
          {"data", facts_of(task_.data())}};
}

void TrainerCore::take_progress_values(const json& values) {
  commits_ = values.at("commits");
  updates_ = values.at("updates");
  const json& duties = values.at("duties");
  duties_ = {.compare = duties.at(0),
             .evaluate = duties.at(1),
             .save = duties.at(2),
             .best = duties.at(3)};
  reason_ = reason_of(values.at("reason"));
  stop_after_step_ = reason_of(values.at("stop_after_step"));
  saved_.reset();
  if (const json& saved = values.at("saved"); !saved.is_null()) {
    saved_ = {saved.at(0).get<std::int64_t>(), saved.at(1).get<std::int64_t>()};
  }
  saved_best_ = values.at("saved_best");
  log_lines_ = values.at("log_lines");
  counted_ = values.at("counted");
  next_talk_ = values.at("next_talk");
  metric_names_.reset();
  if (const json& names = values.at("metric_names"); !names.is_null()) {
    metric_names_ = names.get<std::vector<std::string>>();
  }
  result_.loss.reset();
  if (const json& loss = values.at("loss"); !loss.is_null()) result_.loss = loss.get<double>();
  result_.evaluation = values.at("evaluation").get<std::map<std::string, double>>();
  result_.resumed_from = values.at("resumed_from");
  journal_ = RunJournal::from_json(values.at("journal"));
  known_steps_.reset();
  last_talk_ = Clock::now();
  steps_since_talk_ = 0;
}

// The process that wrote the last snapshot died before it was on the disk, or this one, which
// writes, has skipped the save.
bool TrainerCore::save_was_lost() const {
  if (!snapshots_ || !snapshots_->writes() || !saved_) return false;
  await_disk();
  try {
    for (const FoundSnapshot& found : find_snapshots(directory_ + "/snapshots")) {
      if (found.manifest && found.step >= saved_->first) return false;
    }
    return true;
  } catch (const Error&) {
    return false;  // the next save says what is wrong
  }
}

void TrainerCore::readmit_to_snapshots(bool takes) {
  const bool wrote = snapshots_ && snapshots_->writes();
  // Another is to write, who waits for this one.
  if (wrote && !is_main() && !options_.snapshots.per_node) await_disk();
  if (snapshots_) {
    snapshots_->readmit();
  } else {
    open_snapshots();
  }
  // What all ranks were writing is lost with one of them.
  save_in_doubt_ = save_in_doubt_ || takes || !wrote || task_.sharded() != nullptr;
}

void TrainerCore::verify_state(const Takeover& taken) {
  const auto all =
      world_.group().all_gather_json({{"state", fingerprint()},
                                      {"parts", part_fingerprints()},
                                      {"commits", commits_},
                                      {"save_again", save_in_doubt_ && save_was_lost()}});
  const json& expected = all[static_cast<std::size_t>(taken.source)];
  std::vector<int> different;
  int believed = taken.source;  // in what the first of them has wrong
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    int other = taken.source;
    bool same = all[rank].at("state") == expected.at("state") &&
                all[rank].at("commits") == expected.at("commits");
    for (const auto& [part, sum] : all[rank].at("parts").items()) {
      const int source = taken.part_sources.at(std::stoul(part));
      if (!same || sum == all[static_cast<std::size_t>(source)].at("parts").at(part)) continue;
      same = false;
      other = source;
    }
    if (!same && different.empty()) believed = other;
    if (!same) different.push_back(static_cast<int>(rank));
    if (!all[rank].at("save_again").get<bool>()) continue;
    duties_.save = true;
    duties_.best = duties_.best || saved_best_;
  }
  if (!different.empty()) {
    reject_replicas(different, concat("step ", state_->position.step, ": the state of ",
                                      list_ranks(different), " is not that of rank ", believed));
  }
}

}  // namespace lockstep
