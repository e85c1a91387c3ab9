# Bugs that the simulation must find. Each stands in place of some statements of one source of the
# launcher: mutation(<name> <source> <statements> <replacement>). All of them are compiled into one
# program, which plants the one that it is told to. Statements that are not there exactly once any more
# are an error, because their bug would test nothing.

# Epochs.
mutation(old_failure_acts coordinator.cpp
  [[if (!node.participant || failed.epoch != epoch_) return;]]
  [[if (!node.participant) return;]])
mutation(old_success_counts coordinator.cpp
  [[if (phase_ != Phase::running || !node.participant || succeeded.epoch != epoch_) return;]]
  [[if (phase_ != Phase::running || !node.participant) return;]])
mutation(old_membership_accepted agent.cpp
  [[if (phase_ != NodePhase::idle || prepare.membership.epoch <= membership_.epoch) return;]]
  [[if (phase_ != NodePhase::idle) return;]])
mutation(old_start_accepted agent.cpp
  [[if (phase_ != NodePhase::prepared || start.epoch != membership_.epoch) return;]]
  [[if (phase_ != NodePhase::prepared) return;]])
mutation(epochs_begin_again coordinator_join.cpp
  [[highest_epoch_ = join.epoch;]]
  [[]])

# Who takes part, and when.
mutation(busy_node_taken coordinator_counts.cpp
  [[if (is_free(node)) {
    sign > 0 ? void(free_.insert(node.info.id)) : void(free_.erase(node.info.id));
  }]]
  [[if (node.link) sign > 0 ? void(free_.insert(node.info.id)) : void(free_.erase(node.info.id));]])
mutation(busy_node_not_awaited coordinator_counts.cpp
  [[if (node.busy != 0) counts_.busy += sign;]]
  [[]])
mutation(no_last_call coordinator.cpp
  [[if (!last_call_) last_call_ = now_ + options_.last_call;]]
  [[form();]])
mutation(last_call_with_too_few coordinator.cpp
  [[gather();  // a last call ends when there are too few]]
  [[]])
mutation(ready_not_awaited coordinator.cpp
  [[if (phase_ != Phase::preparing || counts_.unready > 0) return;]]
  [[if (phase_ != Phase::preparing) return;]])
mutation(store_not_awaited coordinator_join.cpp
  [[if (opens_store && join.store_port == 0) return;]]
  [[]])
mutation(local_store_not_opened agent.cpp
  [[if (opens_store()) return actions_.push_back(OpenStore{membership_});]]
  [[if (membership_.group_rank == 0) return actions_.push_back(OpenStore{membership_});]])
mutation(local_store_of_another_node agent.cpp
  [[workers.master_port = store_port_;]]
  [[]])
mutation(ranks_overlap membership.cpp
  [[count += node.workers;]]
  [[count += 1;]])
mutation(lost_node_still_counts coordinator_counts.cpp
  [[if (!node.participant) return;]]
  [[]])
mutation(own_rank_refused coordinator_join.cpp
  [[if (is_being_replaced(link, join)) return;]]
  [[]])

# Restarts.
mutation(restart_not_counted coordinator.cpp
  [[++restarts_;]]
  [[]])
mutation(every_failure_costs_a_restart coordinator.cpp
  [[failures_.push_back({now_ - failed.age, failed});]]
  [[failures_.push_back({now_ - failed.age, failed});
    if (phase_ == Phase::stopping) return restart_or_finish({.code = 1, .reason = ""});]])
mutation(resume_code_restarted coordinator.cpp
  [[restart_or_finish({.code = failed.code, .reason = reason, .of_worker = true});]]
  [[restart_or_finish({.code = 1, .reason = reason, .of_worker = true});]])

# What is said again after a connection broke.
mutation(start_not_repeated coordinator_join.cpp
  [[return send(node, start_);]]
  [[return;]])
mutation(end_not_repeated coordinator_join.cpp
  [[if (phase_ == Phase::finished) return send(node, finish_);]]
  [[if (phase_ == Phase::finished) return;]])
mutation(failures_not_repeated agent.cpp
  [[for (WorkerFailed& failed : failures) failed.age = now_ - failed_at_.at(failed.rank);]]
  [[failures.clear();]])
mutation(success_not_repeated coordinator_join.cpp
  [[return handle(node, WorkersSucceeded{epoch_});]]
  [[return;]])

mutation(end_not_confirmed coordinator.cpp
  [[if (phase_ == Phase::finished && !done_ && (nodes_.empty() || now_ >= done_at_)) {
    done_ = true;
    actions_.emplace_back(CoordinatorDone{});
  }]]
  [[if (phase_ == Phase::finished && !done_) {
    done_ = true;
    actions_.emplace_back(CoordinatorDone{});
  }]])

# Stopping.
mutation(stop_ignored_when_prepared agent.cpp
  [[if (stop.epoch < membership_.epoch) return;]]
  [[if (stop.epoch < membership_.epoch || phase_ == NodePhase::prepared) return;]])
mutation(not_stopped_when_cut_off agent.cpp
  [[if (!in_touch_) lost_touch();]]
  [[]])
mutation(silence_counted_from_the_break agent.cpp
  [[apart_since_ = heard_;  // a connection may have been dead for a while before it broke]]
  [[apart_since_ = now;]])
mutation(never_killed agent.cpp
  [[if (kill_at_ && now >= *kill_at_) kill_now();]]
  [[]])
mutation(second_signal_waits agent.cpp
  [[kill_now();
    if (awaits_end_) send(Leave{signal, ending_->reason});  // nor shall the coordinator wait
    if (stop_signals_ > 2 && ending_) finish(*ending_);     // nor for what cannot be killed]]
  [[]])
mutation(leftovers_forgotten agent.cpp
  [[actions_.push_back(EndLeftovers{.gently = signalled_});]]
  [[all_stopped();]])

# Recovery in place.
mutation(workers_without_state_carried_over coordinator_recovery.cpp
  [[ranks.insert(loss_->ranks.begin(), loss_->ranks.end());]]
  [[ranks = loss_->ranks;]])
mutation(state_of_new_workers_not_noted coordinator_recovery.cpp
  [[with_state_.insert(recovers.rank);]]
  [[]])
mutation(all_state_lost_and_not_noticed coordinator_recovery.cpp
  [[if (std::cmp_greater_equal(lost.size(), world_size())) {
    return Obstacle{"no rank with the job's state is left"};
  }]]
  [[]])
mutation(replacements_not_limited coordinator_shrink.cpp
  [[if (!reason && std::cmp_greater_equal(filling.replaced.size(), most - replacements_)) {
      reason = most == 0 ? "none is replaced (--max-replacements 0)"
                         : concat(replacements_, " of ", most,
                                  " replacements are used (--max-replacements)");
    }]]
  [[]])
mutation(words_not_awaited coordinator_recovery.cpp
  [[if (obstacle && obstacle->may_pass && now_ < loss_->deadline) return true;]]
  [[]])
mutation(words_awaited_for_ever coordinator.cpp
  [[if (loss_ && now >= loss_->deadline) retry_loss();]]
  [[]])
mutation(replacement_not_repeated coordinator_recovery.cpp
  [[if (join.epoch < epoch_) return send(node, prepare_in_place(node));]]
  [[if (join.epoch < epoch_) return;]])
mutation(lost_node_costs_nothing_while_re_forming coordinator.cpp
  [[if (node.participant && !carries_over_) return begin_stop(text, SIGTERM);]]
  [[if (node.participant) return begin_stop(text, SIGTERM);]])
mutation(old_replacement_accepted agent_recovery.cpp
  [[if (prepare.membership.epoch <= membership_.epoch) return;]]
  [[]])
mutation(old_start_of_replacements_accepted agent_recovery.cpp
  [[if (start.epoch != membership_.epoch || !ready_) return;]]
  [[]])
mutation(replaced_before_it_is_gone agent_recovery.cpp
  [[if (old_ones_left) return;]]
  [[]])
mutation(worker_that_had_left_not_told agent_recovery.cpp
  [[if (!is_missing(slots_[i])) continue;]]
  [[continue;]])
mutation(worker_that_had_left_awaited coordinator_recovery.cpp
  [[if (!awaits_all || !node.participant || cannot.epoch != epoch_) return;]]
  [[if (!is_reforming() || !node.participant || cannot.epoch != epoch_) return;]])
mutation(unknown_death_not_told_again agent_recovery.cpp
  [[failed.epoch = membership_.epoch;
    failed.age = now_ - failed_at_.at(failed.rank);
    send(failed);]]
  [[]])

# Places that are left out.
mutation(too_few_go_on coordinator_shrink.cpp
  [[return least > 0 && std::cmp_greater_equal(world_size(), count + static_cast<std::size_t>(least));]]
  [[return least > 0;]])
mutation(left_out_without_leave coordinator_recovery.cpp
  [[if (!is_certain && !filling.left_out.empty() && !may_leave_out(filling.left_out.size())) {
    obstacle = Obstacle{
        concat(filling.why.empty() ? "a node is lost" : filling.why, words_about_min_world())};
  }]]
  [[]])
mutation(ranks_have_gaps membership.cpp
  [[return place - static_cast<int>(below);]]
  [[return place;]])
mutation(left_out_worker_lives_on agent_recovery.cpp
  [[slot.is_replaced = holds(replaced_, place) || !membership_.is_in(place);]]
  [[slot.is_replaced = holds(replaced_, place);]])
mutation(left_out_worker_awaited_at_the_end agent.cpp
  [[return each.state == SlotState::succeeded || each.state == SlotState::left_out;]]
  [[return each.state == SlotState::succeeded;]])
mutation(words_of_those_left_out_awaited coordinator_recovery.cpp
  [[if (lost.contains(rank) || left_out_.contains(rank) || with_state_.contains(rank)) continue;]]
  [[if (lost.contains(rank) || with_state_.contains(rank)) continue;]])
mutation(never_tried_again coordinator_shrink.cpp
  [[return *next;]]
  [[return std::nullopt;]])
mutation(tried_again_at_once coordinator_shrink.cpp
  [[left_out_[place] = now_ + options_.rejoin_after * (1 << doublings);]]
  [[left_out_[place] = now_;]])
mutation(tried_again_beyond_the_budget coordinator_seats.cpp
  [[if (when <= time && !absent_.contains(seat_of(place)) && std::cmp_less(places.size(), most)) {
      places.insert(place);
    }]]
  [[if (when <= time && !absent_.contains(seat_of(place))) places.insert(place);]])
mutation(tried_again_and_left_out coordinator_recovery.cpp
  [[left_out_.erase(place);]]
  [[]])

# Nodes that are lost and replaced while others go on.
mutation(lost_node_still_awaited coordinator_seats.cpp
  [[absent_.insert(seat);]]
  [[]])
mutation(first_node_left_out coordinator_seats.cpp
  [[if (options_.terms.min_world == 0 || !at_work || seat == 0) return false;]]
  [[if (options_.terms.min_world == 0 || !at_work) return false;]])
mutation(node_of_another_size_taken coordinator_seats.cpp
  [[return node.workers == before.workers && node.role == before.role &&
             (!node.node_rank || node.node_rank == before.node_rank);]]
  [[return true;]])
mutation(node_taken_beyond_the_budget coordinator_seats.cpp
  [[if (is_due && std::cmp_less_equal(places.size() + its_places.size(), most)) {
      places.insert(its_places.begin(), its_places.end());
    }]]
  [[places.insert(its_places.begin(), its_places.end());]])

# Warnings.
mutation(warned_of_more_time_than_is_left coordinator_signals.cpp
  [[send(node, PassSignal{.signal = 0, .time_left = *ends_at_ - now_});]]
  [[send(node, PassSignal{.signal = 0, .time_left = *ends_at_ + now_});]])

# The survey of the network.
mutation(network_without_answers network_survey.cpp
  [[if (answered_.size() < members_.size()) return false;]]
  [[]])
mutation(network_of_a_node_that_is_gone coordinator_counts.cpp
  [[give_up_survey_with(id);]]
  [[]])

# Who leads (sim_takeover).
mutation(record_counts_at_once leadership.cpp
  [[record_number_ = number;]]
  [[record_number_ = number;
    actions_.emplace_back(RecordKept{number});]])
mutation(record_without_fence leadership.cpp
  [[fence.push_back({keys.record(), record_revision_});]]
  [[fence.clear();]])
mutation(earlier_leader_goes_on leadership.cpp
  [[if (leads_ && seen_term_ > term_) {
    // While this node could not ask, another led, and is gone or cannot ask either. What that one
    // has begun is in the record, not here.
    say(concat("etcd knows of a later coordinator (term ", seen_term_,
               "): the coordinator here gives up"));
    stop_leading();
    term_ = seen_term_;
    leader_id_.clear();
    actions_.emplace_back(GiveUp{});
    return;
  }]]
  [[]])
