#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "launch/coordinator_shell.h"
#include "launch/job_plan.h"
#include "launch/link_client.h"
#include "launch/reach.h"

namespace lockstep {

/// What both ends of a link between launchers call themselves. Not the job's id: a node with
/// another one is to hear so from the coordinator, in its words.
inline constexpr const char* kLinkProtocol = "lockstep-agents";

/// The agent's way to the coordinator: by calls where it runs in this process, over the network
/// elsewhere.
class CoordinatorLink {
 public:
  struct Callbacks {
    std::function<void()> connected;
    std::function<void(const Message&)> message;
    std::function<void(const std::string& reason)> disconnected;
    std::function<void(const std::string& text)> say;
    // Where the coordinator runs in this process; see CoordinatorShell.
    std::function<void(const std::string& text, const NodeChange&)> node_changed = {};
    // With etcd: the coordinator is elsewhere now, or here. disconnected() follows.
    std::function<void(const std::string& where, bool here)> moved = {};
    std::function<void()> idle;  // over() may have become true

    // --store local, where the coordinator runs in this process; see CoordinatorShell.
    std::function<void(const Membership&)> open_store;
    std::function<UniqueFd(Epoch epoch, const std::string& address)> connect_store;
    // The same elsewhere: what belongs to streams (see StreamBundle), which may throw
    // InvalidArgument, and that there is room for more of it.
    std::function<void(std::string_view message)> stream_message;
    std::function<void()> drained;
  };

  virtual ~CoordinatorLink() = default;

  /// Answered by connected() or disconnected(), from the loop.
  virtual void connect() = 0;
  /// Not answered.
  virtual void disconnect() = 0;
  /// How far the last attempt to connect has come. Also while disconnected() is called.
  virtual Reach reach() const { return Reach::heard; }
  virtual void send(const Message& message) = 0;
  /// A message of a stream. Only where the coordinator is elsewhere.
  virtual void send_stream(const std::string& message) = 0;
  /// What waits to be sent.
  virtual std::size_t queued_bytes() const = 0;
  /// Whether the process may end without anybody missing a message.
  virtual bool over() = 0;
};

/// Makes the coordinator as well where the plan says that this node hosts it. Throws SystemError if
/// its port cannot be had; where that this node hosts was only a guess, and a launcher may hold the
/// port, it then joins that one, and `plan` is changed to say so.
std::unique_ptr<CoordinatorLink> make_coordinator_link(EventLoop& loop, JobPlan& plan,
                                                       CoordinatorLink::Callbacks callbacks);

}  // namespace lockstep
