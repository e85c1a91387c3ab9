#pragma once

#include <unistd.h>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "control/agent_client.h"
#include "launch/worker_hub.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "tests/support/said.h"

namespace lockstep {

using testing::contains;

inline bool eventually(EventLoop& loop, const std::function<bool()>& holds) {
  const auto limit = EventLoop::Clock::now() + std::chrono::seconds(30);
  while (!holds()) {
    if (EventLoop::Clock::now() > limit) return false;
    loop.run_once(std::chrono::milliseconds(5));
  }
  return true;
}

// A hub that takes a process, by default this one, for the worker of slot 3 in epoch 2.
struct Hub {
  explicit Hub(EventLoop& loop, WorkerHubOptions options = {}) {
    if (options.socket_path.empty()) options.socket_path = folder / "agent";
    if (options.heartbeat_interval == WorkerHubOptions().heartbeat_interval) {
      options.heartbeat_interval = std::chrono::milliseconds(10);
    }
    hub.emplace(loop, options,
                WorkerHub::Callbacks{
                    .place_of = [this](pid_t pid) -> std::optional<SlotPlace> {
                      ++asked;
                      if (pid == worker) return place;
                      return std::nullopt;
                    },
                    .on_hello =
                        [this](int slot, const WorkerHello& hello) {
                          events.push_back(concat("hello ", slot, " ", hello.program));
                        },
                    .on_heartbeat =
                        [this](int, const WorkerHeartbeat&) {
                          ++heartbeats;
                          last_heartbeat = EventLoop::Clock::now();
                        },
                    .on_lost_peers =
                        [this](int slot, const WorkerLostPeers& lost) {
                          events.push_back(
                              concat("lost ", slot, " ", lost.ranks.at(0), " ", lost.operation));
                        },
                    .on_leaving = [this](int slot) { events.push_back(concat("leaving ", slot)); },
                    .on_recovers =
                        [this](int slot, const WorkerRecovers& recovers) {
                          events.push_back(concat("recovers ", slot, " in ", recovers.epoch, " at ",
                                                  recovers.step));
                        },
                    .on_rejected =
                        [this](int slot, const WorkerRejected& rejected) {
                          events.push_back(concat(slot, " rejects ", rejected.ranks.at(0), ": ",
                                                  rejected.reason));
                        },
                    .on_spare = [this](int spare) { events.push_back(concat("spare ", spare)); },
                    .on_gone =
                        [this](int slot, const std::string& why) {
                          events.push_back(concat("gone ", slot, ": ", why));
                        },
                    .on_refused = [this](const std::string& why) { refused = why; }});
  }

  testing::TemporaryFolder folder;
  pid_t worker = ::getpid();
  SlotPlace place{.slot = 3, .epoch = 2};
  int asked = 0;
  int heartbeats = 0;
  EventLoop::Clock::time_point last_heartbeat;
  std::vector<std::string> events;
  std::string refused;
  std::optional<WorkerHub> hub;
};

inline AgentClient::Options options_for(const Hub& hub) {
  AgentClient::Options options;
  options.socket_path = hub.hub->socket_path();
  options.hello = {.pid = ::getpid(), .rank = 3, .slot = 3, .epoch = 2, .program = "test"};
  return options;
}

}  // namespace lockstep
