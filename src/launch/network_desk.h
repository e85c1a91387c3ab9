#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/event_loop.h"
#include "launch/job_plan.h"
#include "launch/link_client.h"
#include "launch/link_server.h"
#include "launch/messages.h"

namespace lockstep {

/// Answers the coordinator's questions about the network on one node.
///
/// While a survey lasts it listens at each of the node's addresses. Who probes one shows that it
/// has the job's secret, and hears the same and which node this is: a machine elsewhere with the
/// same private address is not mistaken for it. The ports are closed when the survey is over.
class NetworkDesk {
 public:
  using Send = std::function<void(const Message&)>;

  /// The plan and the loop outlive it.
  NetworkDesk(EventLoop& loop, const JobPlan& plan, Send send);
  ~NetworkDesk();
  NetworkDesk(const NetworkDesk&) = delete;
  NetworkDesk& operator=(const NetworkDesk&) = delete;

  /// Takes what the coordinator says, and looks at what concerns it.
  void on_message(const Message& message);

  /// The connection to the coordinator is gone, and with it the survey.
  void close();

 private:
  struct Round;

  void answer(const AskAddresses& ask);
  void probe(const ProbeNodes& probes);
  void listen_at(NodeAddress& address);
  void begin(std::size_t number, const ProbeTarget& target);
  void decide(std::size_t number, const std::string& failure);
  void finish_round();

  EventLoop& loop_;
  const JobPlan& plan_;
  Send send_;
  std::vector<std::unique_ptr<LinkServer>> listeners_;
  std::unique_ptr<Round> round_;
};

}  // namespace lockstep
