#include "doctor/several_nodes.h"

#include <algorithm>
#include <memory>
#include <set>

#include "cluster/head_place.h"
#include "doctor/desk.h"
#include "doctor/examination.h"
#include "doctor/judge_nodes.h"
#include "doctor/remote_doctors.h"
#include "launch/event_loop.h"
#include "launch/link_client.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kStep{100};
constexpr milliseconds kRetryPause{300};

MemberOptions member_options(const SeveralNodesOptions& options) {
  return {.secret = options.secret,
          .tls = options.tls,
          .shared_folder = options.shared_folder,
          .smoke = options.smoke};
}

// Links of a node to the head: tries again until one is there, then is that one.
class WayToHead {
 public:
  WayToHead(EventLoop& loop, const LocalReport& local, const SeveralNodesOptions& options)
      : loop_(loop),
        options_(options),
        member_(loop, local, member_options(options), [this](const std::string& text) {
          if (client_) client_->send(text);
        }) {}

  DoctorEnd follow() {
    const auto deadline = Clock::now() + options_.join_limit;
    while (!member_.end()) {
      if (!client_) connect();
      loop_.run_once(kStep);
      if (!closed_ || member_.end()) continue;
      if (opened_) throw SystemError(concat("the head of the doctor was lost: ", reason_));
      if (is_final(reason_) || Clock::now() > deadline) throw SystemError(not_reached());
      say_why_not_yet();
      client_.reset();
      closed_ = false;
      next_endpoint_ = (next_endpoint_ + 1) % options_.endpoints.size();
      next_try_ = Clock::now() + kRetryPause;
      while (Clock::now() < next_try_) loop_.run_once(kRetryPause);
    }
    return *member_.end();
  }

 private:
  std::string not_reached() const {
    return concat("the head of the doctor was not reached: ", reason_,
                  is_final(reason_) ? ""
                                    : "; is lockstep doctor running there, and does a firewall let "
                                      "this port through?");
  }

  // Once for each reason: the head may start later than this.
  void say_why_not_yet() {
    if (reason_ == said_) return;
    said_ = reason_;
    options_.say(concat("waiting for the head: ", reason_));
  }

  // Trying again would change nothing.
  static bool is_final(const std::string& reason) {
    return reason.find("refused: ") != std::string::npos ||
           reason.find("secret") != std::string::npos;
  }

  const Endpoint& endpoint() const { return options_.endpoints[next_endpoint_]; }

  void connect() {
    LinkClient::Callbacks callbacks;
    callbacks.on_open = [this](const std::string&, const std::string&) {
      opened_ = true;
      options_.say(concat("this node is looked at from ", endpoint().to_string()));
      member_.greet();
    };
    callbacks.on_message = [this](const std::string& text) {
      try {
        member_.on_message(text);
      } catch (const InvalidArgument& error) {
        closed_ = true;
        reason_ = error.what();
      }
    };
    callbacks.on_close = [this](const std::string& reason) {
      closed_ = true;
      reason_ = reason;
    };
    client_ = std::make_unique<LinkClient>(loop_,
                                           LinkClientOptions{.server = endpoint(),
                                                             .secret = options_.secret,
                                                             .tls = options_.tls,
                                                             .run_id = kDoctorProtocol},
                                           std::move(callbacks));
  }

  EventLoop& loop_;
  const SeveralNodesOptions& options_;
  std::unique_ptr<LinkClient> client_;
  DoctorMember member_;
  bool opened_ = false;
  bool closed_ = false;
  std::string reason_;
  std::string said_;
  std::size_t next_endpoint_ = 0;
  Clock::time_point next_try_;
};

// Whatever is to be asked of those who have come, and what it comes to.
DoctorReport examine_and_judge(DoctorDesk& desk, int wanted_nodes,
                               const SeveralNodesOptions& options) {
  DoctorReport report;
  if (desk.nodes().empty()) return report;
  const Examination examination = examine(desk, wanted_nodes,
                                          {.shared_folder = options.shared_folder,
                                           .most_rounds = options.most_rounds,
                                           .smoke = options.smoke.enabled,
                                           .say = options.say});
  for (const DeskNode& node : examination.nodes) {
    report.nodes.push_back(node.hello.host);
    report.findings.insert(report.findings.end(), node.hello.findings.begin(),
                           node.hello.findings.end());
  }
  const Findings together = judge_nodes(examination);
  report.findings.insert(report.findings.end(), together.begin(), together.end());
  report.pairs = examination.pairs;
  return report;
}

std::set<std::string> hosts_at(const DoctorDesk& desk) {
  std::set<std::string> hosts;
  for (const DeskNode& node : desk.nodes()) hosts.insert(node.hello.host);
  return hosts;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

DoctorReport examine_as_head(std::vector<UniqueFd> listeners, const LocalReport& local,
                             const SeveralNodesOptions& options) {
  EventLoop loop;
  const auto begin = Clock::now();
  DoctorDesk desk(loop, std::move(listeners),
                  {.secret = options.secret, .tls = options.tls, .say = options.say});
  desk.seat_local(local, member_options(options));
  desk.gather(options.nodes, options.join_limit);
  DoctorReport report = examine_and_judge(desk, options.nodes, options);
  report.seconds = seconds_since(begin);
  desk.end({.code = report.exit_code(), .summary = summary_line(report)});
  return report;
}

DoctorReport examine_hosts(const HeadPlan& plan, const SeveralNodesOptions& options) {
  EventLoop loop;
  const auto begin = Clock::now();
  HeadPort port = open_head_port(plan);
  DoctorDesk desk(loop, std::move(port.listeners),
                  {.secret = options.secret, .tls = options.tls, .say = options.say});
  RemoteDoctors remotes(loop, plan, port.endpoints);
  const std::size_t wanted = plan.nodes.size();
  desk.gather(static_cast<int>(wanted), options.join_limit,
              [&] { return desk.nodes().size() + remotes.failed(hosts_at(desk)) >= wanted; });
  // Who is missing is known by name here, and said so.
  const Findings absences = remotes.absences(hosts_at(desk), options.join_limit);
  DoctorReport report =
      examine_and_judge(desk, static_cast<int>(wanted - absences.size()), options);
  for (const HeadNode& node : plan.nodes) {
    if (std::ranges::find(report.nodes, node.host.name) == report.nodes.end()) {
      report.nodes.push_back(node.host.name);
    }
  }
  report.findings.insert(report.findings.end(), absences.begin(), absences.end());
  report.seconds = seconds_since(begin);
  desk.end({.code = report.exit_code(), .summary = summary_line(report)});
  remotes.wait();
  return report;
}

DoctorEnd examine_as_member(const LocalReport& local, const SeveralNodesOptions& options) {
  EventLoop loop;
  return WayToHead(loop, local, options).follow();
}

}  // namespace lockstep
