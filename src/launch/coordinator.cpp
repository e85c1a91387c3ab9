#include "launch/coordinator.h"

#include <algorithm>
#include <csignal>

#include "core/signal_names.h"
#include "launch/membership.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// For nodes that have lost their connection to come back and hear the end.
constexpr Time kLinger = std::chrono::seconds(5);
// Whose reports every node gets at the end: as many as people are shown.
constexpr std::size_t kMostFailuresInFull = 17;

// Whether nodes of an earlier coordinator's epoch may come. Of a job that has ended none need be
// awaited; who comes hears the end.
bool awaits_nodes(const std::optional<CoordinatorRecord>& record) {
  return record && record->phase != CoordinatorRecord::Phase::finished;
}

}  // namespace

Coordinator::Coordinator(const CoordinatorOptions& options, Time now)
    : options_(options),
      now_(now),
      gathering_since_(now),
      next_beat_(now + options.terms.beat_interval),
      next_status_(now + options.status_interval),
      recall_until_(now + options.recall_limit) {
  if (!options.record) return;
  highest_epoch_ = options.record->epoch;
  if (options.record->time_left) recorded_end_ = now + *options.record->time_left;
  const auto& ids = options.record->participants;
  recorded_ids_ = {ids.begin(), ids.end()};
}

Coordinator::Actions Coordinator::on_message(LinkId link, const Message& message, Time now) {
  now_ = now;
  actions_.clear();
  if (std::holds_alternative<Beat>(message)) {
    // The most frequent of all, and nothing follows from it.
    if (Node* node = node_of(link)) node->heard = now;
    return take();
  }
  rejoin_.reset();
  if (const auto* join = std::get_if<Join>(&message)) {
    handle(link, *join);
    lose_former_host();
  } else if (Node* node = node_of(link)) {
    node->heard = now;
    std::visit(
        [&](const auto& kind) {
          // What only a coordinator sends is not for it.
          if constexpr (requires { handle(*node, kind); }) handle(*node, kind);
        },
        message);
  }
  rejoin_if_due();
  return take();
}

Coordinator::Actions Coordinator::on_closed(LinkId link, const std::string& reason, Time now) {
  now_ = now;
  actions_.clear();
  rejoin_.reset();
  if (Node* node = node_of(link)) {
    change(*node, [&] { node->link.reset(); });
    node->disconnected = now;
    node->disconnect_reason = reason;
    links_.erase(link);
    failed_surveys_ = 0;
    gather();  // a last call ends when there are too few
  }
  return take();
}

Coordinator::Actions Coordinator::on_end_request(int signal, const std::string& reason, Time now) {
  now_ = now;
  actions_.clear();
  if (phase_ == Phase::finished) return take();
  const int code = signal != 0 ? 128 + signal : 1;
  // A failure that is already being dealt with stays the cause.
  if (!ending_) ending_ = Ending{.code = code, .reason = reason, .of_worker = false};
  ++end_requests_;
  if (phase_ == Phase::gathering || end_requests_ > 2) {
    finish(ending_->code, ending_->reason);
  } else if (phase_ != Phase::stopping) {
    begin_stop(reason, signal != 0 ? signal : SIGTERM);
  } else if (end_requests_ == 2) {
    for (const std::string& id : still_busy()) {
      send(*participant(id), Stop{epoch_, SIGKILL, reason});
    }
  }
  return take();
}

Coordinator::Actions Coordinator::on_time(Time now) {
  now_ = now;
  actions_.clear();
  rejoin_.reset();
  if (now >= next_beat_) {
    // If this comes late it was this process that stood still; what nodes said has not been read.
    if (now - next_beat_ > options_.terms.beat_interval) {
      for (auto& [id, node] : nodes_) node.heard = now;
    }
    next_beat_ = now + options_.terms.beat_interval;
    send_to_all(Beat{});
    check_silence();
  }
  if (awaits_nodes(options_.record) && now >= recall_until_) {
    options_.record.reset();  // none of its nodes is left
    gather();
  }
  if (phase_ == Phase::gathering) {
    if (now >= next_status_) {
      next_status_ = now + options_.status_interval;
      send_to_all(Status{status(now)});
    }
    end_if_alone();
  }
  if (phase_ == Phase::gathering) {
    if (last_call_ && now >= *last_call_ && !surveys()) {
      form();
    } else if (!last_call_ && !surveys() && now >= gathering_since_ + options_.join_timeout) {
      finish(1, concat("not enough nodes came together: ", status(now)));
    }
  }
  survey_if_due();
  if (phase_ == Phase::stopping && now >= stop_deadline_) {
    // All at once: losing the last of them begins the next epoch, with new participants.
    visit(participants_.size());
    for (const std::string& id : still_busy()) lose(id, "it did not stop its workers in time");
  }
  if (loss_ && now >= loss_->deadline) retry_loss();
  if (is_reforming() && now >= reform_deadline_) {
    give_up_reforming(
        concat("not all nodes were ready within ", whole_seconds(options_.reform_limit), " s"));
  }
  rejoin_if_due();
  return take();
}

Coordinator::Actions Coordinator::take() {
  if (phase_ == Phase::finished && !done_ && (nodes_.empty() || now_ >= done_at_)) {
    done_ = true;
    actions_.emplace_back(CoordinatorDone{});
  }
  return std::move(actions_);
}

Time Coordinator::next_deadline() const {
  if (done_) return Time::max();
  Time deadline = next_beat_;
  if (phase_ == Phase::gathering) {
    deadline = std::min(deadline, next_status_);
    if (!surveys()) {
      deadline = std::min(deadline, last_call_.value_or(gathering_since_ + options_.join_timeout));
    }
    if (survey_) deadline = std::min(deadline, survey_deadline_);
    if (survey_again_at_) deadline = std::min(deadline, *survey_again_at_);
  }
  if (awaits_nodes(options_.record)) deadline = std::min(deadline, recall_until_);
  if (phase_ == Phase::stopping) deadline = std::min(deadline, stop_deadline_);
  if (is_reforming()) deadline = std::min(deadline, reform_deadline_);
  if (loss_) deadline = std::min(deadline, loss_->deadline);
  if (const auto rejoin = known_rejoin()) deadline = std::min(deadline, *rejoin);
  if (phase_ == Phase::finished) deadline = std::min(deadline, done_at_);
  return deadline;
}

// ---- an epoch ----

std::vector<NodeInfo> Coordinator::candidates() const {
  visit(free_.size());
  std::vector<NodeInfo> free;
  for (const std::string& id : free_) free.push_back(nodes_.at(id).info);
  return free;
}

void Coordinator::gather() {
  if (phase_ != Phase::gathering || awaits_nodes(options_.record)) return;
  const auto count = static_cast<int>(free_.size());
  if (count < options_.terms.min_nodes) {
    last_call_.reset();
    return;
  }
  if (surveys()) return;
  // After a restart with nobody lost there is nobody to wait for.
  const bool all_back =
      !participants_.empty() && !lost_someone_ && count >= static_cast<int>(participants_.size());
  const bool is_called = last_call_ && now_ >= *last_call_;  // and the network was looked at
  if (count >= options_.terms.max_nodes || all_back || is_called) return form();
  if (!last_call_) last_call_ = now_ + options_.last_call;
}

void Coordinator::form() {
  std::vector<NodeInfo> chosen = candidates();
  sort_by_rank_order(chosen);
  // When there are too many, those who were members stay.
  const std::set<std::string> before(participants_.begin(), participants_.end());
  std::ranges::stable_partition(chosen,
                                [&](const NodeInfo& node) { return before.contains(node.id); });
  if (chosen.size() > static_cast<std::size_t>(options_.terms.max_nodes)) {
    chosen.resize(static_cast<std::size_t>(options_.terms.max_nodes));
  }
  sort_by_rank_order(chosen);
  if (!network_is_settled(chosen)) return;
  std::vector<Membership> places = form_memberships(chosen, highest_epoch_ + 1, restarts_);
  places_ = places.front().places;
  const JobTerms& terms = options_.terms;
  if (terms.min_world > places_ && !terms.elastic()) {
    return finish(1, concat("--min-world is ", terms.min_world, ", but the job has only ", places_,
                            places_ == 1 ? " rank" : " ranks"));
  }

  phase_ = Phase::preparing;
  epoch_ = ++highest_epoch_;
  last_call_.reset();
  lost_someone_ = false;
  failures_.clear();
  failed_.clear();
  stopped_ranks_.clear();
  resume_ = false;
  carries_over_ = false;
  settled_ = true;
  with_state_.clear();
  withdrawn_.clear();
  goes_on_.clear();
  replaced_.clear();
  lost_ranks_.clear();
  deaths_.clear();
  died_at_.clear();
  left_out_.clear();
  absences_.clear();
  unstartable_.clear();
  absent_.clear();
  seats_ = chosen;
  first_places_.clear();
  for (const Membership& place : places) first_places_.push_back(place.self.first_rank);
  participants_.clear();
  visit(nodes_.size() + chosen.size());
  for (auto& [id, node] : nodes_) {
    change(node, [&node = node] { node.participant = node.ready = node.succeeded = false; });
  }
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    Node& node = nodes_.at(chosen[i].id);
    change(node, [&] {
      node.participant = true;
      node.busy = epoch_;
      node.membership = std::move(places[i]);
    });
    participants_.push_back(chosen[i].id);
    send(node, Prepare{.membership = node.membership});
  }
  ++record_version_;
}

void Coordinator::handle(Node& node, const Ready& ready) {
  if (phase_ != Phase::preparing || !node.participant || ready.epoch != epoch_) return;
  change(node, [&] { node.ready = true; });
  node.store_port = ready.store_port;
  start_if_all_are_ready();
}

void Coordinator::start_if_all_are_ready() {
  if (phase_ != Phase::preparing || counts_.unready > 0) return;
  const Node& first = nodes_.at(participants_.front());
  start_ = Start{epoch_, first.info.address, first.store_port};
  phase_ = Phase::running;
  ++record_version_;
  visit(participants_.size());
  for (const std::string& id : participants_) {
    if (Node* node = participant(id)) send(*node, start_);
  }
  grow_if_possible();
}

void Coordinator::handle(Node& node, const WorkerFailed& failed) {
  if (!node.participant || failed.epoch != epoch_) return;
  if (phase_ != Phase::running && phase_ != Phase::stopping && !is_reforming()) return;
  if (!failed_.emplace(failed.epoch, failed.rank).second) return;
  failures_.push_back({now_ - failed.age, failed});
  const std::string reason = concat(
      "rank ", failed.rank, " on ", node.info.host, " failed (",
      failed.code > 128 ? signal_name(failed.code - 128) : concat("exit code ", failed.code), ")");
  if (phase_ == Phase::running || is_reforming()) {
    if (survive(node, failed)) return;
    restart_or_finish({.code = failed.code, .reason = reason, .of_worker = true});
  } else if (failed.code == kResumeCode && !ending_) {
    // What another node reported first began a restart.
    ending_ = Ending{.code = failed.code, .reason = reason, .of_worker = true};
  }
}

void Coordinator::handle(Node& node, const WorkersSucceeded& succeeded) {
  if (phase_ != Phase::running || !node.participant || succeeded.epoch != epoch_) return;
  change(node, [&] { node.succeeded = true; });
  retry_loss();
  finish_if_all_succeeded();
}

void Coordinator::finish_if_all_succeeded() {
  // Nobody is lost from a running epoch but those that succeeded.
  if (counts_.unfinished == 0) finish(0, "");
}

void Coordinator::handle(Node& node, const Stopped& stopped) {
  if (stopped.epoch < node.busy) return;
  if (node.participant && stopped.epoch == epoch_) {
    stopped_ranks_.insert(stopped_ranks_.end(), stopped.stopped_ranks.begin(),
                          stopped.stopped_ranks.end());
    resume_ = resume_ || stopped.resume;
  }
  change(node, [&] { node.busy = 0; });
  if (node.participant && phase_ == Phase::stopping) return stop_or_finish();
  if (node.participant && (phase_ == Phase::running || phase_ == Phase::preparing)) {
    // It was cut off, and begins anew with another connection.
    return lose(node.info.id, "it stopped its workers by itself");
  }
  gather();
  grow_if_possible();
}

void Coordinator::handle(Node& node, const Leave& leave) {
  if (phase_ == Phase::finished) return forget(node);  // it has heard the end
  const int code = leave.signal != 0 ? 128 + leave.signal : 1;
  if (!node.hosts_coordinator) {
    // A node that cannot even begin will not be able to later, unless a restart is to be tried.
    if (phase_ == Phase::preparing && !carries_over_ && node.participant &&
        !options_.terms.elastic() && restarts_ >= options_.terms.max_restarts) {
      ending_ = Ending{.code = code,
                       .reason = concat("node ", node.info.host, " left: ", leave.reason),
                       .of_worker = false};
    }
    return lose(node.info.id, leave.reason, code);
  }
  // The coordinator goes with the node, so the job cannot go on without it.
  if (node.leaving) return finish(code, leave.reason);  // asked twice: without waiting for others
  node.leaving = true;
  // A failure that is already being dealt with stays the cause.
  if (!ending_) ending_ = Ending{.code = code, .reason = leave.reason, .of_worker = false};
  if (phase_ == Phase::gathering) return finish(code, leave.reason);
  if (phase_ == Phase::preparing || phase_ == Phase::running) {
    begin_stop(leave.reason, leave.signal != 0 ? leave.signal : SIGTERM);
  }
}

void Coordinator::grow_if_possible() {
  if (phase_ != Phase::running) return;
  if (participants_.size() >= static_cast<std::size_t>(options_.terms.max_nodes)) return;
  const std::vector<NodeInfo> waiting = candidates();
  if (waiting.empty() || !nodes_for_empty_seats().empty()) return;
  // Where workers have already succeeded the job is about to end; they would do their work twice.
  if (counts_.succeeded > 0 || lacks_participants()) return;
  begin_stop(concat("node ", waiting.front().host, " joined: restarting with ",
                    participants_.size() + waiting.size(), " nodes"),
             SIGTERM);
}

// ---- endings ----

void Coordinator::restart_or_finish(const Ending& ending) {
  if (ending.code != kResumeCode && restarts_ < options_.terms.max_restarts) {
    ++restarts_;
    return begin_stop(
        concat(ending.reason, ": restart ", restarts_, " of ", options_.terms.max_restarts),
        SIGTERM);
  }
  ending_ = ending;
  begin_stop(ending.reason, SIGTERM);
}

void Coordinator::begin_stop(const std::string& reason, int signal) {
  phase_ = Phase::stopping;
  ++record_version_;
  loss_.reset();
  stop_deadline_ = now_ + options_.stop_limit;
  if (!ending_) actions_.push_back(Say{reason});  // an end is reported by itself
  visit(participants_.size());
  for (const std::string& id : participants_) {
    if (Node* node = participant(id)) send(*node, Stop{epoch_, signal, reason});
  }
  stop_or_finish();
}

void Coordinator::stop_or_finish() {
  if (counts_.busy > 0) return;
  if (ending_) {
    // Failures on several nodes arrive in any order; the earliest one is the cause.
    if (ending_->of_worker && !failures_.empty()) {
      const auto first = std::ranges::min_element(failures_, {}, &Failure::when);
      ending_->code = first->report.code;
    } else if (resume_) {
      ending_->code = kResumeCode;  // stopped by a signal, and it was used to save
    }
    return finish(ending_->code, ending_->reason);
  }
  phase_ = Phase::gathering;
  gathering_since_ = now_;
  next_status_ = now_ + options_.status_interval;
  visit(nodes_.size());
  for (auto& [id, node] : nodes_) {
    change(node, [&node = node] { node.participant = false; });
  }
  gather();
}

void Coordinator::finish(int code, const std::string& reason) {
  phase_ = Phase::finished;
  loss_.reset();
  survey_.reset();
  survey_again_at_.reset();
  done_at_ = now_ + kLinger;
  std::ranges::sort(failures_, {}, &Failure::when);
  finish_ = Finish{.code = code, .reason = reason, .failures = {}, .stopped_ranks = stopped_ranks_};
  std::ranges::sort(finish_.stopped_ranks);
  for (const Failure& failure : failures_) {
    if (code == 0) break;
    if (finish_.failures.size() == kMostFailuresInFull) {
      finish_.more_failed.push_back(failure.report.rank);
      continue;
    }
    finish_.failures.push_back(failure.report);
    finish_.failures.back().age = now_ - failure.when;
  }
  std::ranges::sort(finish_.more_failed);
  if (record_version_ != 0) ++record_version_;  // a job that never began leaves none
  send_to_all(finish_);
}

void Coordinator::forget(const Node& node) {
  const std::string id = node.info.id;
  if (node.link) {
    links_.erase(*node.link);
    actions_.push_back(CloseLink{*node.link});
  }
  erase(id);
}

void Coordinator::lose(const std::string& id, const std::string& reason, int code, bool close) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const Node node = found->second;
  erase(id);
  if (node.link) {
    links_.erase(*node.link);
    if (close) actions_.push_back(CloseLink{*node.link});
  }
  departures_[node.info.host] = {reason, now_};
  const std::string text = concat("node ", node.info.host, " was lost: ", reason);
  // Of a participant people hear with what is done about it.
  actions_.push_back(Say{node.participant ? "" : text, NodeChange{.kind = NodeChange::Kind::lost,
                                                                  .host = node.info.host,
                                                                  .address = node.info.address,
                                                                  .workers = node.info.workers,
                                                                  .reason = reason}});
  if (node.participant) lost_someone_ = true;
  switch (phase_) {
    case Phase::gathering:
      return gather();
    case Phase::preparing:
      if (node.participant && !carries_over_) return begin_stop(text, SIGTERM);
      [[fallthrough]];  // who lives on has begun
    case Phase::running:
      if (!node.participant) return;
      if (node.succeeded) return finish_if_all_succeeded();
      if (go_on_without(node, {.code = code, .reason = text, .of_worker = false})) return;
      // A job that may change its size does so; one of fixed size has failed and may be restarted.
      if (options_.terms.elastic()) return begin_stop(text, SIGTERM);
      return restart_or_finish({.code = code, .reason = text, .of_worker = false});
    case Phase::stopping:
      return stop_or_finish();
    case Phase::finished:
      return;
  }
}

void Coordinator::check_silence() {
  std::vector<std::pair<std::string, std::string>> lost;
  visit(nodes_.size());
  for (const auto& [id, node] : nodes_) {
    if (node.hosts_coordinator && node.link) continue;
    if (node.link && now_ - node.heard > options_.terms.beat_limit) {
      lost.emplace_back(
          id, concat("nothing was heard of it for ", whole_seconds(now_ - node.heard), " s"));
    } else if (!node.link &&
               now_ - node.disconnected >
                   (node.is_recalled ? options_.recall_limit : options_.reconnect_limit)) {
      lost.emplace_back(id, node.disconnect_reason);
    }
  }
  lose_all(lost);
}

void Coordinator::send(Node& node, const Message& message) {
  if (!node.link) return;
  actions_.push_back(SendTo{*node.link, message});
}

void Coordinator::send_to_all(const Message& message) {
  visit(nodes_.size());
  for (auto& [id, node] : nodes_) send(node, message);
}

Coordinator::Node* Coordinator::participant(const std::string& id) {
  const auto found = nodes_.find(id);
  // One that was lost may be back under its id, but not as a participant.
  return found == nodes_.end() || !found->second.participant ? nullptr : &found->second;
}

std::vector<std::string> Coordinator::still_busy() {
  std::vector<std::string> busy;
  for (const std::string& id : participants_) {
    const Node* node = participant(id);
    if (node != nullptr && node->busy != 0) busy.push_back(id);
  }
  return busy;
}

Coordinator::Node* Coordinator::node_of(LinkId link) {
  const auto found = links_.find(link);
  return found == links_.end() ? nullptr : &nodes_.at(found->second);
}

}  // namespace lockstep
