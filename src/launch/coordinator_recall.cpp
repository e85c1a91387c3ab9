// A coordinator that goes on where an earlier one stood.
#include <algorithm>
#include <utility>

#include "launch/coordinator.h"
#include "launch/membership.h"
#include "lockstep/error.h"

namespace lockstep {

CoordinatorRecord Coordinator::record() const {
  const auto end_of = [](const Ending& ending) {
    return CoordinatorRecord::End{ending.code, ending.reason, ending.of_worker};
  };
  CoordinatorRecord record{.run_id = options_.terms.run_id,
                           .host_id = "",
                           .epoch = epoch_,
                           .phase = CoordinatorRecord::Phase::stopping,
                           .restarts = restarts_,
                           .replacements = replacements_,
                           .carries_over = carries_over_,
                           .settled = settled_,
                           .seats = seats_,
                           .participants = participants_,
                           .replaced = {replaced_.begin(), replaced_.end()},
                           .left_out = {},
                           .absences = absences_,
                           .died_at = died_at_,
                           .start = std::nullopt,
                           .cause = end_of(cause_),
                           .ending = std::nullopt,
                           .finish = std::nullopt,
                           .time_left = std::nullopt,
                           .written_at = Time(0)};
  visit(nodes_.size());
  for (const auto& [id, node] : nodes_) {
    if (node.hosts_coordinator) record.host_id = id;
  }
  for (const auto& [place, when] : left_out_) record.left_out.push_back(place);
  if (ending_) record.ending = end_of(*ending_);
  if (ends_at_) record.time_left = std::max(Time(0), *ends_at_ - now_);
  if (phase_ == Phase::preparing) record.phase = CoordinatorRecord::Phase::preparing;
  if (phase_ == Phase::running) {
    record.phase = CoordinatorRecord::Phase::running;
    record.start = start_;
  }
  if (phase_ == Phase::finished) {
    record.phase = CoordinatorRecord::Phase::finished;
    record.finish = finish_;
  }
  return record;
}

// A record may be old: its job has died altogether and was begun anew under the same name. So it is
// believed only when one of its nodes comes, and epochs are counted on in any case.
void Coordinator::recall_if_of_record(const Join& join) {
  if (!recalls() || phase_ != Phase::gathering || join.terms != options_.terms) return;
  const bool is_over = options_.record->phase == CoordinatorRecord::Phase::finished;
  // A node that was lost before the job ended must not begin it again.
  const bool is_of_record =
      is_over ? epoch_ == 0 && join.epoch != 0 : recorded_ids_.contains(join.node.id);
  if (!is_of_record) return;
  const CoordinatorRecord record = *std::exchange(options_.record, std::nullopt);
  restarts_ = std::max(restarts_, record.restarts);
  replacements_ = record.replacements;
  if (!ends_at_) ends_at_ = recorded_end_;
  // The earlier one has gone further than it could write down: its epoch is unknown here.
  if (join.epoch > record.epoch) return;
  recall(record);
}

void Coordinator::recall(const CoordinatorRecord& record) {
  const auto ending_of = [](const CoordinatorRecord::End& end) {
    return Ending{.code = end.code, .reason = end.reason, .of_worker = end.of_worker};
  };
  using Recorded = CoordinatorRecord::Phase;
  phase_ = record.phase == Recorded::preparing ? Phase::preparing
           : record.phase == Recorded::running ? Phase::running
                                               : Phase::stopping;
  epoch_ = highest_epoch_ = record.epoch;
  last_call_.reset();
  carries_over_ = record.carries_over;
  settled_ = record.settled;
  cause_ = ending_of(record.cause);
  if (record.ending) ending_ = ending_of(*record.ending);
  if (record.start) start_ = *record.start;
  lost_since_ = now_;
  stop_deadline_ = now_ + options_.stop_limit;
  reform_deadline_ = now_ + options_.reform_limit;
  seats_ = record.seats;
  participants_ = record.participants;
  replaced_ = {record.replaced.begin(), record.replaced.end()};
  absences_ = record.absences;
  died_at_ = record.died_at;
  const auto memberships = form_memberships(seats_, epoch_, restarts_, record.left_out);
  places_ = memberships.front().places;
  first_places_.clear();
  for (const Membership& place : memberships) first_places_.push_back(place.self.first_rank);
  visit(participants_.size());
  for (const int place : record.left_out) left_out_[place] = now_ + options_.rejoin_after;
  for (std::size_t i = 0; i < participants_.size(); ++i) {
    if (participants_[i].empty()) {
      absent_.insert(static_cast<int>(i));
      continue;
    }
    Node& node = nodes_[participants_[i]];
    change(node, [&] {
      node.info = seats_[i];
      node.participant = true;
      node.membership = memberships[i];
      node.busy = epoch_;
      node.joined = now_;
    });
    if (options_.surveys_network)
      node.network_address = node.info.address;  // what was chosen stays
    node.is_recalled = true;
    node.heard = node.disconnected = now_;
    node.disconnect_reason = "it did not come to the new coordinator";
  }
  // Those that were to live on had been asked already.
  for (int place = 0; is_reforming() && place < places_; ++place) {
    if (!left_out_.contains(place) && !replaced_.contains(place)) with_state_.insert(place);
  }
  actions_.push_back(Say{concat("a new coordinator goes on with epoch ", epoch_, " (", restarts_,
                                " of ", options_.terms.max_restarts, " restarts are used)")});
  ++record_version_;
  if (record.phase == Recorded::finished) {
    finish(record.finish->code, record.finish->reason);
    finish_ = *record.finish;
  }
  if (options_.former_host_is_gone) former_host_ = record.host_id;
}

// It ran in the process that died. After the first node has said who of its workers can go on.
void Coordinator::lose_former_host() {
  const std::string id = std::exchange(former_host_, "");
  if (!id.empty()) lose(id, "its launcher has ended");
}

}  // namespace lockstep
