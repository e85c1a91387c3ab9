#include "sim/takeover_world.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "launch/version.h"
#include "lockstep/error.h"

namespace lockstep::sim {

using namespace std::chrono_literals;

TakeoverWorld::TakeoverWorld(std::uint64_t seed, bool trace)
    : seed_(seed), trace_(trace), random_(seed * 0x2545f4914f6cdd1dULL + 7) {
  const int nodes = random_.between(2, 4);
  terms_ = {.run_id = "job", .min_nodes = nodes, .max_nodes = nodes};
  terms_.max_restarts = random_.between(0, 6);
  if (random_.percent(40)) terms_.min_nodes = random_.between(1, nodes);
  if (random_.percent(60)) terms_.max_replacements = random_.between(1, 20);
  if (random_.percent(50)) terms_.min_world = 1;
  coordinator_.terms = terms_;
  coordinator_.join_timeout = random_.between(30s, 60s);
  coordinator_.last_call = random_.between(1s, 5s);
  coordinator_.stop_limit = 15s;
  coordinator_.rejoin_after = random_.between(200ms, 5s);
  faults_end_ = random_.between(40s, 120s);
  work_end_ = random_.between(10s, faults_end_ + 20s);
  for (int i = 0; i < nodes; ++i) {
    nodes_.emplace_back().index = i;
    nodes_.back().workers.resize(static_cast<std::size_t>(random_.between(1, 2)));
  }
}

void TakeoverWorld::note(const Node& node, const std::string& text) const {
  if (!trace_) return;
  std::printf("%10.4f  %-6s %s\n", std::chrono::duration<double>(queue_.now()).count(),
              node.id.c_str(), text.c_str());
}

bool TakeoverWorld::reaches(int one, int other) const {
  return !cut_.contains({std::min(one, other), std::max(one, other)});
}

bool TakeoverWorld::reaches_etcd(const Node& node) const {
  return etcd_is_up_ && !cut_from_etcd_.contains(node.index);
}

void TakeoverWorld::after(Node& node, Time delay, std::function<void()> action) {
  queue_.after(delay, [&node, life = node.life, action = std::move(action)] {
    if (node.alive && node.life == life) action();
  });
}

void TakeoverWorld::run() {
  for (Node& node : nodes_) {
    ++starts_ahead_;
    queue_.at(random_.between(0ms, 3s), [this, &node] {
      --starts_ahead_;
      start(node);
    });
  }
  queue_.at(faults_end_, [this] {
    faults_over_ = etcd_is_up_ = true;
    cut_.clear();
    cut_from_etcd_.clear();
  });
  cause_fault();
  const Time limit = faults_end_ + 20min;
  const auto anyone = [&] {
    return starts_ahead_ > 0 || std::ranges::any_of(nodes_, &TakeoverNode::alive);
  };
  while (anyone()) {
    queue_.run_next();
    if (queue_.now() > limit) throw std::runtime_error("the job does not end");
  }
}

void TakeoverWorld::start(Node& node) {
  ++node.life;
  node.alive = true;
  node.id = concat("n", node.index, ".", node.life);
  note(node, "starts");
  const auto workers = node.workers.size();
  AgentOptions options{.self = {.id = node.id,
                                .host = concat("n", node.index),
                                .address = concat("10.0.0.", node.index + 1),
                                .seen_at = "",
                                .node_rank = node.index,
                                .workers = static_cast<int>(workers),
                                .role = "default",
                                .pid = node.life,
                                .version = lockstep_version(),
                                .program = {}},
                       .terms = terms_};
  options.coordinator = "etcd";
  options.apart_limit = terms_.beat_limit + 6s;
  options.grace = 3s;
  options.join_timeout = coordinator_.join_timeout;
  node.workers.assign(workers, {});
  node.membership = {};
  node.finish.reset();
  node.leader.reset();
  node.link.reset();
  node.in_touch = node.resigns = false;
  node.highest_term = 0;
  node.agent = std::make_unique<Agent>(options, queue_.now());
  node.leadership = std::make_unique<Leadership>(
      LeadershipOptions{.keys = {.prefix = "/lockstep", .run_id = "job", .secret = ""},
                        .self = {.term = 0,
                                 .id = node.id,
                                 .host = options.self.host,
                                 .address = options.self.address,
                                 .port = 1000 + node.life}},
      queue_.now());
  with_leadership(node, node.leadership->on_time(queue_.now()));
  check_touch(node);
  with_agent(node, node.agent->start());
}

void TakeoverWorld::crash(Node& node) {
  note(node, "crashes");
  drop_coordinator(node);
  for (auto& [id, link] : links_) {
    if (link.node == node.index && link.node_open) break_link(id, false, true);
  }
  node.alive = false;
  for (Node::Worker& worker : node.workers) worker.runs = false;
}

// As EtcdLink::over(): the coordinator has told everyone, and etcd is left as it was.
void TakeoverWorld::exit_if_done(Node& node) {
  if (!node.alive || !node.finish || (node.coordinator && !node.coordinator_done)) return;
  if (!std::exchange(node.resigns, true)) {
    return with_leadership(node, node.leadership->resign(queue_.now()));
  }
  if (!node.leadership->resigned()) return;
  note(node, concat("exits with ", node.finish->code, " ", node.finish->reason));
  drop_coordinator(node);
  for (auto& [id, link] : links_) {
    if (link.node == node.index && link.node_open) break_link(id, false, true);
  }
  node.alive = false;
}

void TakeoverWorld::cause_fault() {
  queue_.after(random_.between(500ms, 12s), [this] {
    if (faults_over_) return;
    const int count = static_cast<int>(nodes_.size());
    const int victim = random_.between(0, count - 1), other = random_.between(0, count - 1);
    Node& node = nodes_[static_cast<std::size_t>(victim)];
    const Time pause = random_.between(200ms, 15s);
    const int kind = random_.between(1, 100);
    if (kind <= 30) {
      if (node.alive) crash(node);
      if (node.life > 0 && !node.alive && random_.percent(85)) {
        ++starts_ahead_;
        queue_.after(pause, [this, &node] {
          --starts_ahead_;
          if (!node.alive) start(node);
        });
      }
    } else if (kind <= 50) {
      note(node, "is cut off from etcd");
      cut_from_etcd_.insert(victim);
      queue_.after(pause, [this, victim] { cut_from_etcd_.erase(victim); });
    } else if (kind <= 65 && victim != other) {
      const std::pair pair{std::min(victim, other), std::max(victim, other)};
      note(node, concat("is cut off from n", other));
      cut_.insert(pair);
      queue_.after(pause, [this, pair] { cut_.erase(pair); });
    } else if (kind <= 80) {
      note(node, "is cut off from all");
      const bool from_etcd = random_.percent(70);
      if (from_etcd) cut_from_etcd_.insert(victim);
      for (int i = 0; i < count; ++i) {
        if (i != victim) cut_.insert({std::min(victim, i), std::max(victim, i)});
      }
      queue_.after(pause, [this, victim] {
        cut_from_etcd_.erase(victim);
        std::erase_if(
            cut_, [&](const auto& each) { return each.first == victim || each.second == victim; });
      });
    } else if (kind <= 93) {
      // Nothing could tell two leaders apart after that (docs/launcher.md).
      const auto leaders = std::ranges::count_if(
          nodes_, [](const Node& each) { return each.alive && each.coordinator; });
      const bool loses_data = random_.percent(30) && leaders <= 1;
      note(node, loses_data ? "sees etcd die and lose its data" : "sees etcd stall");
      etcd_is_up_ = false;
      if (loses_data) {
        etcd_.lose_data();
        ++losses_;
      }
      queue_.after(pause, [this] { etcd_is_up_ = true; });
    } else if (node.alive) {
      const auto slot = random_.between(0, static_cast<int>(node.workers.size()) - 1);
      end_worker(node, slot, 137, 9);
    }
    cause_fault();
  });
}

}  // namespace lockstep::sim
