#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "doctor/member.h"
#include "launch/link_server.h"

namespace lockstep {

/// A node at the desk.
struct DeskNode {
  NodeHello hello;
  std::string main_address;  // where a job would reach it
  bool translated = false;   // its link comes from an address that it does not have
  std::string lost;          // why it does not answer any more; empty: it does
};

struct DeskOptions {
  std::string secret;
  bool tls = false;
  std::function<void(const std::string&)> say;  // progress, for people
};

/// Where nodes come to be looked at: takes their first words, asks them questions, and waits for
/// answers by running the loop, so that whoever uses it reads from top to bottom.
class DoctorDesk {
 public:
  using Clock = std::chrono::steady_clock;

  /// The sockets listen already; there is at least one.
  DoctorDesk(EventLoop& loop, std::vector<UniqueFd> listeners, DeskOptions options);

  /// This machine is a node as well, without a link, and the first.
  void seat_local(const LocalReport& report, const MemberOptions& options);

  /// Waits until so many nodes are here, or the time is over, or `given_up` says that no more will
  /// come.
  void gather(int nodes, std::chrono::milliseconds limit,
              const std::function<bool()>& given_up = {});

  const std::vector<DeskNode>& nodes() const { return nodes_; }

  /// Addresses of nodes that have proven themselves by small messages, and of which the first large
  /// one never came.
  std::vector<std::string> silent() const;

  /// Asks each node its question, where it has one, and waits for all answers. What is missing
  /// after the limit, or because its node is lost, is std::nullopt.
  std::vector<std::optional<DoctorContent>> ask(
      const std::vector<std::optional<DoctorContent>>& questions, std::chrono::milliseconds limit);

  /// Asks one node.
  std::optional<DoctorContent> ask_one(std::size_t node, const DoctorContent& question,
                                       std::chrono::milliseconds limit);

  /// Tells all, and waits until they have heard it.
  void end(const DoctorEnd& end);

 private:
  struct Waiting {
    std::size_t node;
    std::optional<DoctorContent> answer;
  };

  void on_open(LinkServer::Id id, const std::string& peer, const std::string& local);
  void on_message(LinkServer::Id id, const std::string& text);
  void on_close(LinkServer::Id id, const std::string& reason);
  void take(std::size_t node, const DoctorMessage& message);
  void take_hello(LinkServer::Id id, NodeHello hello);
  void settle_main_addresses();
  void sort_by_name();
  void send(std::size_t node, const std::string& text);
  void say(const std::string& text) const { options_.say(text); }
  std::string names_of_nodes() const;

  EventLoop& loop_;
  DeskOptions options_;
  std::optional<DoctorMember> local_;
  std::vector<DeskNode> nodes_;
  std::vector<LinkServer::Id> links_;  // of each node; 0: the local one
  struct Newcomer {
    std::string address;
    Clock::time_point since;
  };
  std::map<LinkServer::Id, Newcomer> newcomers_;  // links without a first word
  std::map<std::uint64_t, Waiting> waiting_;
  std::string reached_at_;  // the address of this machine that another one reached
  std::uint64_t last_number_ = 0;
  bool gathering_ = true;
  std::unique_ptr<LinkServer> server_;
};

/// What all links of a doctor name: not a job's.
inline constexpr const char* kDoctorProtocol = "lockstep-doctor";

}  // namespace lockstep
