// What etcd_link.cpp, coordinator_shell.cpp and the network between nodes do.
#include <algorithm>
#include <stdexcept>

#include "lockstep/error.h"
#include "sim/takeover_world.h"

namespace lockstep::sim {

using namespace std::chrono_literals;

void TakeoverWorld::with_leadership(Node& node, Leadership::Actions actions) {
  for (LeadershipAction& action : actions) {
    if (auto* ask = std::get_if<AskEtcd>(&action)) {
      // The way there, and the way back: either may be cut, and then nobody knows what was done.
      after(node, random_.between(200us, 30ms), [this, &node, request = ask->request] {
        std::string body;
        const bool is_cut_off = cut_from_etcd_.contains(node.index);
        if (!is_cut_off && random_.percent(etcd_is_up_ ? 2 : 50)) {
          ask_etcd_late(request);
        } else if (reaches_etcd(node)) {
          body = ask_etcd(request);
        }
        const bool is_lost = body.empty() || random_.percent(2);
        after(node, is_lost ? 2s : random_.between(200us, 5ms), [this, &node, body, is_lost] {
          with_leadership(node, is_lost ? node.leadership->on_failure("no answer", queue_.now())
                                        : node.leadership->on_reply(body, queue_.now()));
        });
      });
    } else if (const auto* lead_ = std::get_if<Lead>(&action)) {
      lead(node, *lead_);
    } else if (const auto* follow_ = std::get_if<Follow>(&action)) {
      follow(node, follow_->leader);
    } else if (std::get_if<GiveUp>(&action)) {
      ++tally_.stepped_down;
      drop_coordinator(node);
      node.leader.reset();
      node.agent->set_coordinator("elsewhere", false);
      disconnected(node, "the coordinator is elsewhere");
    } else if (const auto* says = std::get_if<LeadershipSays>(&action)) {
      note(node, says->text);
    } else if (const auto* kept = std::get_if<RecordKept>(&action)) {
      while (!node.records.empty() && node.records.begin()->first <= kept->number) {
        const bool is_new = node.records.begin()->second;
        node.records.erase(node.records.begin());
        if (!is_new || --node.unkept_epochs > 0) continue;
        for (const CoordinatorAction& each : std::exchange(node.held, {})) carry_out(node, each);
      }
    }
  }
  if (!node.alive) return;
  const std::uint64_t timer = ++node.leadership_timer;
  const Time deadline = node.leadership->next_deadline();
  if (deadline != Time::max()) {
    after(node, deadline - queue_.now() + 10us, [this, &node, timer] {
      if (node.leadership_timer != timer) return;
      with_leadership(node, node.leadership->on_time(queue_.now()));
    });
  }
  exit_if_done(node);
}

std::string TakeoverWorld::ask_etcd(const EtcdRequest& request) {
  std::string body = etcd_.answer(request, std::chrono::duration<double>(queue_.now()).count());
  if (request.path == "/v3/kv/txn" && etcd_.has("/lockstep/job/record", 0)) {
    const LeaderKeys keys{.prefix = "/lockstep", .run_id = "job", .secret = ""};
    const auto text = keys.open(keys.record(), etcd_.value(keys.record()));
    if (const auto record = coordinator_record_from_json(text.value_or(""))) {
      in_etcd_.insert(record->epoch);
      // Who takes over would count from there.
      if (std::exchange(record_losses_, losses_) == losses_ && record->epoch < record_epoch_) {
        throw std::runtime_error(
            concat("the record goes back from epoch ", record_epoch_, " to ", record->epoch));
      }
      record_epoch_ = record->epoch;
    }
  }
  return body;
}

// It lies somewhere, in a server that stalls or on the way to it, while who asked has given it up
// and asks for other things. With etcd's data its servers' connections are gone.
void TakeoverWorld::ask_etcd_late(const EtcdRequest& request) {
  queue_.after(random_.between(1s, 25s), [this, request, losses = losses_] {
    if (!etcd_is_up_ || losses != losses_) return;
    ++tally_.late;
    ask_etcd(request);
  });
}

void TakeoverWorld::lead(Node& node, const Lead& lead) {
  note(node, concat("leads in term ", lead.term));
  ++tally_.terms;
  for (const Node& other : nodes_) {
    if (&other != &node && other.alive && other.coordinator) ++tally_.two_at_once;
  }
  if (lead.term <= node.highest_term) throw std::runtime_error("a term comes twice");
  node.highest_term = lead.term;
  drop_coordinator(node);
  CoordinatorOptions options = coordinator_;
  options.record = coordinator_record_from_json(lead.record);
  node.leader.reset();
  node.coordinator = std::make_unique<Coordinator>(options, queue_.now());
  node.agent->set_coordinator("here", true);
  disconnected(node, "the coordinator is here now");
  with_coordinator(node, {});
}

void TakeoverWorld::follow(Node& node, const Leader& leader) {
  note(node, concat("follows ", leader.id, " in term ", leader.term));
  if (leader.term < node.highest_term) throw std::runtime_error("a node goes back to a term");
  node.highest_term = leader.term;
  if (node.coordinator) ++tally_.stepped_down;
  drop_coordinator(node);
  node.leader = leader;
  node.agent->set_coordinator(leader.host, false);
  disconnected(node, "the coordinator moved");
}

void TakeoverWorld::drop_coordinator(Node& node) {
  ++node.reign;
  node.coordinator.reset();
  node.kept_version = 0;
  node.kept_epoch = 0;
  node.unkept_epochs = 0;
  node.records.clear();
  node.held.clear();
  node.coordinator_done = false;
  for (auto& [id, link] : links_) {
    if (link.host == node.index && link.host_open) break_link(id, true, false);
  }
}

void TakeoverWorld::check_touch(Node& node) {
  after(node, 500ms, [this, &node] { check_touch(node); });
  const bool hears = queue_.now() - node.heard <= 2 * terms_.beat_interval + 500ms;
  const bool in_touch = node.link && hears;
  if (std::exchange(node.in_touch, in_touch) == in_touch) return;
  with_leadership(node, node.leadership->on_touch(in_touch, queue_.now()));
}

void TakeoverWorld::connect(Node& node) {
  const std::uint64_t attempt = ++node.attempt;
  const int host = node.coordinator ? node.index : node.leader ? node.leader->id[1] - '0' : -1;
  const int port = node.leader ? node.leader->port : 0;
  const Time delay = host == node.index ? Time(1us) : random_.between(100us, 5ms);
  after(node, delay, [this, &node, attempt, host, port] {
    if (node.attempt != attempt || node.finish) return;
    if (host < 0) return disconnected(node, "etcd names no coordinator yet");
    Node& other = nodes_[static_cast<std::size_t>(host)];
    const bool is_there = other.alive && (host == node.index || 1000 + other.life == port);
    if (!is_there) return disconnected(node, "connection refused");
    if (!other.coordinator || (host != node.index && !reaches(node.index, host))) {
      after(node, 3s, [this, &node, attempt] {
        if (node.attempt == attempt) disconnected(node, "timed out");
      });
      return;
    }
    const LinkId id = next_link_++;
    links_[id] = {.node = node.index, .host = host, .node_life = node.life, .reign = other.reign};
    node.link = id;
    node.heard = queue_.now();
    with_agent(node, node.agent->on_connected(queue_.now()));
  });
}

void TakeoverWorld::break_link(LinkId id, bool node_learns, bool host_learns) {
  Link& link = links_.at(id);
  link.node_open = link.node_open && node_learns;
  link.host_open = link.host_open && host_learns;
  // Nobody hears of it across a cut.
  if (link.node != link.host && !reaches(link.node, link.host)) return;
  queue_.after(random_.between(100us, 20ms), [this, id, node_learns, host_learns] {
    Link& broken = links_.at(id);
    Node& node = nodes_[static_cast<std::size_t>(broken.node)];
    Node& host = nodes_[static_cast<std::size_t>(broken.host)];
    if (node_learns && std::exchange(broken.node_open, false) && node.alive && node.link == id) {
      node.link.reset();
      disconnected(node, "reset by peer");
    }
    if (host_learns && std::exchange(broken.host_open, false) && host.coordinator &&
        host.reign == broken.reign) {
      with_coordinator(host, host.coordinator->on_closed(id, "reset by peer", queue_.now()));
    }
  });
}

// A connection that has lost something carries nothing any more; its ends learn by the silence.
bool TakeoverWorld::is_cut(Link& link) const {
  link.lost_something |= link.node != link.host && !reaches(link.node, link.host);
  return link.lost_something;
}

void TakeoverWorld::to_coordinator(Node& node, const Message& message) {
  if (!node.link) return;
  const LinkId id = *node.link;
  Link& link = links_.at(id);
  const Time delay = link.host == link.node ? Time(1us) : random_.between(50us, 3ms);
  link.last_up = std::max(link.last_up, queue_.now() + delay);
  queue_.at(link.last_up, [this, id, text = encode(message)] {
    Link& sent = links_.at(id);
    Node& host = nodes_[static_cast<std::size_t>(sent.host)];
    if (!sent.host_open || !host.alive || !host.coordinator || host.reign != sent.reign) return;
    if (is_cut(sent)) return;
    with_coordinator(host, host.coordinator->on_message(id, decode(text), queue_.now()));
  });
}

void TakeoverWorld::to_node(Node& host, LinkId id, const Message& message) {
  Link& link = links_.at(id);
  if (!link.host_open || link.reign != host.reign) return;
  const Time delay = link.host == link.node ? Time(1us) : random_.between(50us, 3ms);
  link.last_down = std::max(link.last_down, queue_.now() + delay);
  queue_.at(link.last_down, [this, id, text = encode(message)] {
    Link& sent = links_.at(id);
    Node& node = nodes_[static_cast<std::size_t>(sent.node)];
    if (!sent.node_open || !node.alive || node.life != sent.node_life || node.link != id) return;
    if (is_cut(sent)) return;
    node.heard = queue_.now();
    with_agent(node, node.agent->on_message(decode(text), queue_.now()));
  });
}

// ---- the coordinator ----

void TakeoverWorld::with_coordinator(Node& node, Coordinator::Actions actions) {
  Coordinator& coordinator = *node.coordinator;
  const std::uint64_t reign = node.reign;
  if (coordinator.record_version() != node.kept_version) {
    if (node.kept_version == 0 && announced_.contains(coordinator.epoch())) ++tally_.recalled;
    node.kept_version = coordinator.record_version();
    const bool is_new = std::exchange(node.kept_epoch, coordinator.epoch()) != coordinator.epoch();
    if (is_new) ++node.unkept_epochs;
    node.records[++node.last_record] = is_new;
    if (is_new) {
      after(node, 1s, [this, &node, number = node.last_record] {
        if (node.records.contains(number)) ++tally_.held;
      });
    }
    const std::string record = to_json(coordinator.record());
    with_leadership(node, node.leadership->keep(record, node.last_record, queue_.now()));
    if (coordinator.phase() == Coordinator::Phase::finished && node.unkept_epochs > 0) {
      node.unkept_epochs = 0;
      for (const CoordinatorAction& each : std::exchange(node.held, {})) carry_out(node, each);
    }
  }
  for (const CoordinatorAction& action : actions) {
    const auto* send = std::get_if<SendTo>(&action);
    const bool is_life_sign = send != nullptr && (std::holds_alternative<Beat>(send->message) ||
                                                  std::holds_alternative<Status>(send->message));
    if (node.unkept_epochs > 0 && !is_life_sign && !std::holds_alternative<Say>(action)) {
      node.held.push_back(action);
    } else {
      carry_out(node, action);
    }
    if (node.reign != reign || !node.alive) return;
  }
  const std::uint64_t timer = ++node.coordinator_timer;
  const Time deadline = coordinator.next_deadline();
  if (deadline != Time::max()) {
    after(node, std::max<Time>(deadline - queue_.now(), 0s) + 10us, [this, &node, timer, reign] {
      if (node.coordinator_timer != timer || node.reign != reign || !node.coordinator) return;
      with_coordinator(node, node.coordinator->on_time(queue_.now()));
    });
  }
  exit_if_done(node);
}

void TakeoverWorld::carry_out(Node& node, const CoordinatorAction& action) {
  if (const auto* send = std::get_if<SendTo>(&action)) {
    if (const auto* prepare = std::get_if<Prepare>(&send->message)) {
      if (node.coordinator->phase() == Coordinator::Phase::finished) return;
      check_announced(*prepare);
    }
    if (const auto* finish = std::get_if<Finish>(&send->message)) {
      note(node, concat("tells the end: ", finish->code, " ", finish->reason));
    }
    to_node(node, send->link, send->message);
  } else if (const auto* close = std::get_if<CloseLink>(&action)) {
    links_.at(close->link).host_open = false;
    break_link(close->link, true, false);
  } else if (const auto* say = std::get_if<Say>(&action)) {
    note(node, concat("coordinator: ", say->text));
  } else {
    node.coordinator_done = true;
  }
}

void TakeoverWorld::check_announced(const Prepare& prepare) {
  // All but what only this node is told.
  Membership common = prepare.membership;
  common.group_rank = common.first_role_rank = 0;
  common.self = {};
  common.nodes.clear();
  const auto [known, is_new] = announced_.try_emplace(common.epoch, Announced{common, losses_, {}});
  Announced& announced = known->second;
  if (is_new) ++tally_.epochs;
  // Who begins after etcd has lost its data cannot know what there was.
  if (announced.losses != losses_) announced = {common, losses_, {}};
  const auto has_seat = [&](int group_rank, const NodePlace& place) {
    return announced.seats.try_emplace(group_rank, place).first->second == place;
  };
  bool is_same = announced.membership == common &&
                 has_seat(prepare.membership.group_rank, prepare.membership.self);
  int group_rank = 0;
  for (const NodePlace& place : prepare.membership.nodes) {
    is_same = has_seat(group_rank++, place) && is_same;
  }
  if (!is_same) {
    throw std::runtime_error(concat("epoch ", common.epoch, " has two memberships"));
  }
  // Of several that waited for etcd, only the last one is written.
  if (in_etcd_.lower_bound(common.epoch) == in_etcd_.end()) {
    throw std::runtime_error(concat("epoch ", common.epoch, " is announced before it is in etcd"));
  }
}

}  // namespace lockstep::sim
