// Workers that die are replaced one by one, while the others live on in the next epoch.
#include <algorithm>
#include <csignal>
#include <iomanip>
#include <sstream>
#include <utility>

#include "core/rank_list.h"
#include "core/signal_names.h"
#include "launch/coordinator.h"
#include "launch/membership.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string seconds_with_hundredths(Time time) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << std::chrono::duration<double>(time).count();
  return text.str();
}

}  // namespace

// ---- who can be carried over ----

void Coordinator::handle(Node& node, const RankRecovers& recovers) {
  if (phase_ != Phase::running || !node.participant || recovers.epoch != epoch_) return;
  if (!recovers.able) {
    with_state_.erase(recovers.rank);
    withdrawn_.insert(recovers.rank);
    return retry_loss();
  }
  with_state_.insert(recovers.rank);
  withdrawn_.erase(recovers.rank);
  replaced_.erase(recovers.rank);
  goes_on_[recovers.rank] = recovers.step;
  if (loss_) {
    // As long as words are missing for certain, nothing is decided before the time is over.
    const std::size_t known =
        with_state_.size() + left_out_.size() + replaced_.size() + loss_->ranks.size();
    return std::cmp_less(known, places_) ? void() : retry_loss();
  }
  if (!settled_ && std::cmp_equal(goes_on_.size(), world_size())) settle();
}

// The epoch is what the one before was: the ranks that were lost are there again, or left out.
void Coordinator::settle() {
  settled_ = true;
  const std::int64_t step = goes_on_.begin()->second;
  std::set<int> second_deaths;
  for (const int rank : lost_ranks_) {
    if (left_out_.contains(rank)) continue;
    const auto [last, is_new] = died_at_.try_emplace(rank, step);
    if (!is_new && last->second == step) second_deaths.insert(rank);
    last->second = step;
  }
  if (!second_deaths.empty()) return end_second_deaths(second_deaths, step);
  lost_ranks_.clear();
  deaths_.clear();
  failures_.clear();
  failed_.clear();
  for (const auto& [rank, its_step] : goes_on_) absences_.erase(rank);
  ++record_version_;
  const Recovered recovered{.epoch = epoch_, .step = step, .since_loss = now_ - lost_since_};
  actions_.push_back(Say{concat(count_of_those_in(), " go on after step ", step, " (",
                                was_loss_ ? "" : "they stood still for ",
                                seconds_with_hundredths(recovered.since_loss),
                                was_loss_ ? " s after the loss)" : " s)")});
  visit(participants_.size());
  for (const std::string& id : participants_) {
    if (Node* node = participant(id)) send(*node, recovered);
  }
}

// Another replacement would end the same way.
void Coordinator::end_second_deaths(const std::set<int>& ranks, std::int64_t step) {
  Ending ending = cause_;
  ending.reason = concat(cause_.reason, ": for ", list_ranks({ranks.begin(), ranks.end()}),
                         " it was the second time at step ", step);
  if (may_leave_out(ranks.size())) {
    lost_ranks_.clear();
    deaths_.clear();
    const Filling filling{.replaced = {}, .left_out = ranks, .why = ""};
    reform(ending, filling);
    actions_.push_back(Say{describe(ending, filling)});
    return;
  }
  ending.reason += ", so another replacement would end the same way";
  ending_ = ending;
  begin_stop(ending.reason, SIGTERM);
}

// ---- losses ----

bool Coordinator::survive(const Node& node, const WorkerFailed& failed) {
  if (failed.code == kResumeCode) return false;
  // Programs that have never said that they can be carried over are none of this.
  if (!options_.terms.in_place() || (with_state_.empty() && !carries_over_)) return false;
  if (failed.started && failed.signal == 0) {
    say_not_in_place(concat("rank ", failed.rank, " ended by itself, with exit code ", failed.code,
                            ", which is the program's own word"));
    return false;
  }
  if (!failed.started) unstartable_.insert(failed.rank);
  const std::string what =
      concat("rank ", failed.rank, " on ", node.info.host,
             failed.started ? concat(" was ended by ", signal_name(failed.signal))
                            : " could not be started",
             failed.progress.empty() ? "" : concat(" ", failed.progress));
  return replace_in_place({.code = failed.code, .reason = what, .of_worker = true}, {failed.rank},
                          now_ - failed.age);
}

void Coordinator::handle(Node& node, const RanksRejected& rejected) {
  if (phase_ != Phase::running || !node.participant || rejected.epoch != epoch_) return;
  std::vector<int> ranks;
  for (const int rank : rejected.ranks) {
    if (rank < places_ && !left_out_.contains(rank)) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  const Ending ending{.code = 1,
                      .reason = concat(list_ranks(ranks), " must be replaced: ", rejected.reason),
                      .of_worker = false};
  if (!replace_in_place(ending, ranks, now_)) restart_or_finish(ending);
}

bool Coordinator::replace_in_place(const Ending& ending, const std::vector<int>& lost, Time when) {
  for (const int rank : lost) {
    if (!absent_.contains(seat_of(rank))) ++deaths_[rank];
  }
  if (!loss_) {
    loss_ =
        Loss{.ending = ending, .ranks = {}, .when = when, .deadline = now_ + options_.word_limit};
  }
  loss_->ranks.insert(lost.begin(), lost.end());
  return collects_losses_ || settle_loss();
}

// Ranks begin to train one after the other, and their words come over several links: a loss waits
// for those that have said nothing yet. False: it cannot be done in place.
bool Coordinator::settle_loss() {
  // Those that were to take the place of others and have no state yet begin again.
  std::set<int> ranks = replaced_;
  ranks.insert(loss_->ranks.begin(), loss_->ranks.end());
  const Filling filling = fill(ranks);
  auto obstacle = obstacle_to_carrying_over(ranks);
  const bool is_certain = obstacle && !obstacle->may_pass;
  if (!is_certain && !filling.left_out.empty() && !may_leave_out(filling.left_out.size())) {
    obstacle = Obstacle{
        concat(filling.why.empty() ? "a node is lost" : filling.why, words_about_min_world())};
  }
  if (obstacle && obstacle->may_pass && now_ < loss_->deadline) return true;
  const Loss loss = *std::exchange(loss_, std::nullopt);
  if (obstacle) {
    say_not_in_place(obstacle->reason);
    return false;
  }
  if (settled_ || !was_loss_) lost_since_ = loss.when;
  was_loss_ = true;
  lost_ranks_.insert(loss.ranks.begin(), loss.ranks.end());
  reform(loss.ending, filling);
  actions_.push_back(Say{describe(loss.ending, filling)});
  return true;
}

void Coordinator::retry_loss() {
  if (!loss_) return;
  const Ending ending = loss_->ending;
  if (settle_loss()) return;
  // Without the node a job that may change its size begins again, as it would have at once.
  if (!absent_.empty() && options_.terms.elastic()) return begin_stop(ending.reason, SIGTERM);
  restart_or_finish(ending);
}

std::optional<Coordinator::Obstacle> Coordinator::obstacle_to_carrying_over(
    const std::set<int>& lost) const {
  if (counts_.succeeded > 0 || lacks_participants()) {
    return Obstacle{"the workers of a node have already ended well"};
  }
  if (std::cmp_greater_equal(lost.size(), world_size())) {
    return Obstacle{"no rank with the job's state is left"};
  }
  std::optional<Obstacle> obstacle;
  visit(static_cast<std::size_t>(places_));
  for (int rank = 0; rank < places_; ++rank) {
    if (lost.contains(rank) || left_out_.contains(rank) || with_state_.contains(rank)) continue;
    const bool may_pass = !withdrawn_.contains(rank);
    if (obstacle && may_pass) continue;  // the first that is missing, or one for which all is over
    obstacle = Obstacle{concat("rank ", rank, " cannot be carried over: it ",
                               may_pass ? "has not begun to train" : "ends, or has ended"),
                        may_pass};
  }
  return obstacle;
}

void Coordinator::say_not_in_place(const std::string& reason) {
  actions_.push_back(Say{concat("the job cannot go on in place: ", reason)});
}

void Coordinator::reform(const Ending& ending, const Filling& filling) {
  phase_ = Phase::preparing;
  epoch_ = ++highest_epoch_;
  ++record_version_;
  carries_over_ = true;
  settled_ = false;
  cause_ = ending;
  reform_deadline_ = now_ + options_.reform_limit;
  replacements_ += static_cast<int>(filling.replaced.size());
  replaced_ = filling.replaced;
  goes_on_.clear();
  withdrawn_.clear();
  leave_out(filling.left_out);
  for (const int place : filling.left_out) with_state_.erase(place);
  for (const int place : filling.replaced) {
    with_state_.erase(place);
    left_out_.erase(place);
  }
  renumber();
  visit(participants_.size());
  for (const std::string& id : participants_) {
    Node* node = participant(id);
    if (node == nullptr) continue;
    change(*node, [&] {
      node->ready = false;
      node->busy = epoch_;
    });
    send(*node, prepare_in_place(*node));
  }
}

// Nodes keep their places, and the workers that are in number themselves without gaps.
void Coordinator::renumber() {
  std::vector<int> left_out;
  for (const auto& [place, when] : left_out_) left_out.push_back(place);
  const int restarts = nodes_.at(participants_.front()).membership.restart_count;
  auto places = form_memberships(seats_, epoch_, restarts, left_out);
  visit(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    Node* node = participant(participants_[i]);
    if (node != nullptr) change(*node, [&] { node->membership = std::move(places[i]); });
  }
}

Prepare Coordinator::prepare_in_place(const Node& node) const {
  return {.membership = node.membership,
          .carries_over = true,
          .replaced = {replaced_.begin(), replaced_.end()},
          .reason = cause_.reason};
}

void Coordinator::handle(Node& node, const CannotReform& cannot) {
  const bool awaits_all = is_reforming() || (phase_ == Phase::running && !settled_);
  if (!awaits_all || !node.participant || cannot.epoch != epoch_) return;
  give_up_reforming(cannot.reason);
}

void Coordinator::give_up_reforming(const std::string& reason) {
  say_not_in_place(reason);
  restart_or_finish(cause_);
}

// It has its workers, or what is left of them, of this epoch or of one before; or it is to have new
// ones.
void Coordinator::catch_up_reforming(Node& node, const Join& join) {
  const bool begins = join.phase == NodePhase::idle && join.epoch < epoch_ &&
                      std::ranges::includes(replaced_, places_of_seat(node.membership.group_rank));
  if (begins) return send(node, prepare_in_place(node));
  const bool has_workers = join.phase == NodePhase::running || join.phase == NodePhase::succeeded ||
                           join.phase == NodePhase::reforming;
  if (!has_workers || join.epoch > epoch_) return lose_who_is_back(node, join);
  if (join.epoch < epoch_) return send(node, prepare_in_place(node));
  // An earlier coordinator had started this epoch and could not write that down any more.
  const bool has_succeeded = join.phase == NodePhase::succeeded;
  if (has_succeeded) change(node, [&] { node.succeeded = true; });
  if (join.ready) handle(node, Ready{join.epoch, join.store_port});
  // Being ready may have started the epoch; a failure counts all the same.
  for (const WorkerFailed& failed : join.failures) {
    Node* still = participant(join.node.id);
    if (still != nullptr) handle(*still, failed);
  }
  if (has_succeeded && phase_ == Phase::running) finish_if_all_succeeded();
}

}  // namespace lockstep
