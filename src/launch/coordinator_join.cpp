// Who comes to the coordinator, for the first time or again.
#include <csignal>

#include "launch/coordinator.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string seconds_text(Time time) {
  return concat(std::chrono::duration<double>(time).count(), " s");
}

}  // namespace

void Coordinator::handle(LinkId link, const Join& join) {
  recall_if_of_record(join);
  const auto known = nodes_.find(join.node.id);
  if (known == nodes_.end()) {
    if (phase_ == Phase::finished && join.epoch != 0 && join.terms == options_.terms) {
      // It was lost, and comes back too late.
      actions_.push_back(SendTo{link, finish_});
      actions_.push_back(CloseLink{link});
      return;
    }
    if (is_being_replaced(link, join)) return;
    if (const auto reason = reason_to_refuse(join)) {
      actions_.push_back(
          Say{concat("refused ", join.node.host, " (", join.node.address, "): ", *reason)});
      actions_.push_back(SendTo{link, Refused{*reason}});
      actions_.push_back(CloseLink{link});
      return;
    }
  }
  // A coordinator that took over from one that died goes on counting where that one was.
  if (join.epoch > highest_epoch_) {
    highest_epoch_ = join.epoch;
    restarts_ = std::max(restarts_, join.restart_count);
  }
  Node& node = nodes_[join.node.id];
  change(node, [&] {
    if (known == nodes_.end()) node.joined = now_;
    node.info = join.node;
    if (!node.network_address.empty()) node.info.address = node.network_address;
    node.hosts_coordinator = join.hosts_coordinator;
  });
  attach(node, link);
  tell_time_left(node);
  catch_up(node, join);
}

std::optional<std::string> Coordinator::reason_to_refuse(const Join& join) const {
  if (phase_ == Phase::finished) return "the job has ended";
  const JobTerms &ours = options_.terms, &theirs = join.terms;
  if (theirs.run_id != ours.run_id) {
    return concat("this job's --rdzv-id is '", ours.run_id, "', yours is '", theirs.run_id,
                  "': give every node the same one (a value such as $RANDOM differs on each)");
  }
  if (theirs.min_nodes != ours.min_nodes || theirs.max_nodes != ours.max_nodes) {
    return concat("--nnodes is ", ours.min_nodes, ":", ours.max_nodes, " here, ", theirs.min_nodes,
                  ":", theirs.max_nodes, " on your node; it must be the same on all");
  }
  if (theirs.max_restarts != ours.max_restarts) {
    return concat("--max-restarts is ", ours.max_restarts, " here, ", theirs.max_restarts,
                  " on your node; it must be the same on all");
  }
  if (theirs.max_replacements != ours.max_replacements) {
    const auto words = [](const JobTerms& terms) {
      return terms.max_replacements == 0
                 ? std::string("no worker is replaced in place")
                 : concat("up to ", terms.max_replacements, " workers are replaced in place");
    };
    return concat(words(ours), " here, ", words(theirs),
                  " on your node; give --recovery and --max-replacements alike on all");
  }
  if (theirs.min_world != ours.min_world) {
    const auto words = [](const JobTerms& terms) {
      return terms.min_world == 0 ? std::string("not given") : concat(terms.min_world);
    };
    return concat("--min-world is ", words(ours), " here, ", words(theirs),
                  " on your node; it must be the same on all");
  }
  if (theirs.local_store != ours.local_store) {
    return concat("--store is ", ours.local_store ? "local" : "shared", " here, ",
                  theirs.local_store ? "local" : "shared",
                  " on your node; it must be the same on all");
  }
  if (theirs.beat_interval != ours.beat_interval || theirs.beat_limit != ours.beat_limit) {
    return concat("a node is asked for a sign of life every ", seconds_text(ours.beat_interval),
                  " and lost after ", seconds_text(ours.beat_limit), " here, ",
                  seconds_text(theirs.beat_interval), " and ", seconds_text(theirs.beat_limit),
                  " on your node; give keep_alive_interval and keep_alive_max_attempt of "
                  "--rdzv-conf alike on all");
  }
  if (join.node.node_rank && *join.node.node_rank >= ours.max_nodes) {
    return concat("--node-rank is ", *join.node.node_rank,
                  "; it must be below the number of nodes, ", ours.max_nodes);
  }
  if (const Node* taker = holder_of_rank(join.node)) {
    return concat("--node-rank ", *join.node.node_rank, " is already taken by ", taker->info.host,
                  " (", taker->info.address, ")");
  }
  return reason_of_identity(join.node);
}

const Coordinator::Node* Coordinator::holder_of_rank(const NodeInfo& info) const {
  const auto found = info.node_rank ? by_rank_.find(*info.node_rank) : by_rank_.end();
  return found == by_rank_.end() ? nullptr : &nodes_.at(*found->second.begin());
}

// A machine that lost its power and came back finds its old self still taken for alive. So who asks
// for a rank that is taken is sent away to ask again, until the holder was heard of since, or is
// lost.
bool Coordinator::is_being_replaced(LinkId link, const Join& join) {
  const Node* holder = holder_of_rank(join.node);
  if (phase_ == Phase::finished || join.terms != options_.terms || holder == nullptr) return false;
  std::erase_if(claims_, [&](const auto& claim) {
    return now_ - claim.second > options_.join_timeout;  // who asked has given up
  });
  const Time asked = claims_.try_emplace(join.node.id, now_).first->second;
  if (holder->heard > asked + options_.terms.beat_interval) return false;
  actions_.push_back(SendTo{
      link, Status{concat("--node-rank ", *join.node.node_rank, " is held by ", holder->info.host,
                          " (", holder->info.address, "): asking whether it is still there")}});
  actions_.push_back(CloseLink{link});
  return true;
}

void Coordinator::attach(Node& node, LinkId link) {
  if (node.link && *node.link != link) {
    // The old connection is half dead: the node would not have come again otherwise.
    links_.erase(*node.link);
    actions_.push_back(CloseLink{*node.link});
  }
  change(node, [&] { node.link = link; });
  node.is_recalled = false;
  node.heard = now_;
  links_[link] = node.info.id;
}

// Whatever messages were lost, the node has just said where it stands.
void Coordinator::catch_up(Node& node, const Join& join) {
  const bool current = node.participant && join.epoch == epoch_;
  if (phase_ == Phase::finished) return send(node, finish_);
  if (!node.participant) {
    change(node, [&] { node.busy = join.phase == NodePhase::idle ? 0 : join.epoch; });
    if (node.busy != 0)
      return send(node, Stop{node.busy, SIGTERM, "the job has gone on without this node"});
    if (options_.terms.max_nodes > 1) {
      actions_.push_back(
          Say{concat("node ", node.info.host, " (", node.info.address, ", ", node.info.workers,
                     node.info.workers == 1 ? " worker" : " workers", ") joined"),
              NodeChange{.kind = NodeChange::Kind::joined,
                         .host = node.info.host,
                         .address = node.info.address,
                         .workers = node.info.workers}});
      say_what_differs(node.info);
    }
    give_up_survey_with(node.info.id);
    gather();
    return grow_if_possible();
  }
  if (phase_ == Phase::stopping) {
    if (join.phase == NodePhase::idle) return handle(node, Stopped{epoch_, {}});
    if (current) {
      for (const WorkerFailed& failed : join.failures) handle(node, failed);
    }
    return send(node, Stop{std::max(epoch_, join.epoch), SIGTERM, "the epoch is being stopped"});
  }
  if (is_reforming()) return catch_up_reforming(node, join);
  if (phase_ == Phase::preparing && !current && join.phase == NodePhase::idle) {
    return send(node, Prepare{.membership = node.membership});
  }
  if (phase_ == Phase::preparing && current && join.phase == NodePhase::prepared) {
    // Who opens a store is ready when that is open, and says so then.
    const bool opens_store = node.membership.group_rank == 0 || options_.terms.local_store;
    if (opens_store && join.store_port == 0) return;
    return handle(node, Ready{join.epoch, join.store_port});
  }
  if (phase_ == Phase::running && current && join.phase == NodePhase::prepared) {
    return send(node, start_);
  }
  if (phase_ == Phase::running && current && join.phase == NodePhase::reforming) {
    send(node, start_);
    for (const WorkerFailed& failed : join.failures) handle(node, failed);
    return;
  }
  if (phase_ == Phase::running && current && join.phase == NodePhase::succeeded) {
    return handle(node, WorkersSucceeded{epoch_});
  }
  if (phase_ == Phase::running && current && join.phase == NodePhase::running) {
    for (const RankRecovers& recovers : join.recovers) handle(node, recovers);
    for (const WorkerFailed& failed : join.failures) handle(node, failed);
    return;
  }
  lose_who_is_back(node, join);
}

// It has given its workers up while it was cut off. It can take part again, in the next epoch.
void Coordinator::lose_who_is_back(Node& node, const Join& join) {
  const LinkId link = *node.link;
  lose(node.info.id, "it was cut off and stopped its workers", 1, /*close=*/false);
  handle(link, join);
}

}  // namespace lockstep
