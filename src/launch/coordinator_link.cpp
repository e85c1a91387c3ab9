#include "launch/coordinator_link.h"

#include <utility>
#include <vector>

#include "launch/addresses.h"
#include "launch/clock_skew.h"
#include "launch/coordinator_link_parts.h"
#include "launch/coordinator_log.h"
#include "launch/etcd_link.h"
#include "launch/ip_address.h"
#include "launch/listen.h"
#include "launch/port_owner.h"
#include "launch/stream_message.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

class LocalLink : public CoordinatorLink {
 public:
  LocalLink(EventLoop& loop, const CoordinatorOptions& options,
            std::optional<CoordinatorShell::Remote> remote, RecordKeeper keeper,
            Callbacks callbacks)
      : loop_(loop),
        callbacks_(std::move(callbacks)),
        shell_(loop, options, std::move(remote),
               {.to_local_agent = callbacks_.message,
                .local_agent_closed = callbacks_.disconnected,
                .say = callbacks_.say,
                .done = callbacks_.idle,
                .open_store = callbacks_.open_store,
                .connect_store = callbacks_.connect_store,
                .node_changed = callbacks_.node_changed,
                .keep_record = std::move(keeper)}) {}

  ~LocalLink() override { loop_.cancel(connecting_); }

  void connect() override {
    connecting_ = loop_.after({}, [this] { callbacks_.connected(); });
  }
  void disconnect() override {}
  void send(const Message& message) override { shell_.from_local_agent(message); }
  void send_stream(const std::string&) override {
    LOCKSTEP_CHECK(false, "the store is in this process");
  }
  std::size_t queued_bytes() const override { return 0; }
  bool over() override { return shell_.done(); }

 private:
  EventLoop& loop_;
  Callbacks callbacks_;
  CoordinatorShell shell_;
  EventLoop::TimerId connecting_{};
};

class RemoteLink : public CoordinatorLink {
 public:
  RemoteLink(EventLoop& loop, LinkClientOptions options, Callbacks callbacks)
      : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)) {}

  void connect() override {
    LinkClient::Callbacks events;
    events.on_open = [this](const std::string&, const std::string&) { callbacks_.connected(); };
    events.on_message = [this](const std::string& text) { receive(text); };
    events.on_close = [this](const std::string& reason) { callbacks_.disconnected(reason); };
    events.on_drained = [this] { callbacks_.drained(); };
    client_ = std::make_unique<LinkClient>(loop_, options_, std::move(events));
  }
  void disconnect() override { client_.reset(); }
  Reach reach() const override { return client_ ? client_->reach() : Reach::heard; }
  void send(const Message& message) override {
    if (!client_) return;
    const auto* join = std::get_if<Join>(&message);
    if (join == nullptr) return client_->send(encode(message));
    Join stamped = *join;
    stamped.wall_clock = wall_clock_now();
    client_->send(encode(stamped));
  }
  void send_stream(const std::string& message) override {
    if (client_) client_->send(message);
  }
  std::size_t queued_bytes() const override { return client_ ? client_->queued_bytes() : 0; }
  bool over() override { return queued_bytes() == 0; }

 private:
  void receive(const std::string& text) {
    try {
      if (is_stream_message(text)) return callbacks_.stream_message(text);
      callbacks_.message(decode(text));
    } catch (const InvalidArgument& error) {
      client_.reset();
      callbacks_.disconnected(
          concat("the coordinator does not speak our language: ", error.what()));
    }
  }

  EventLoop& loop_;
  LinkClientOptions options_;
  Callbacks callbacks_;
  std::unique_ptr<LinkClient> client_;
};

std::vector<UniqueFd> listen_at_endpoint(const Endpoint& endpoint) {
  const std::vector<std::string> addresses =
      addresses_to_listen_at(endpoint.host, resolve(endpoint.host), LocalMachine::current());
  if (!addresses.empty()) return listen_on_each(addresses, endpoint.port);
  std::vector<UniqueFd> sockets;
  sockets.push_back(listen_everywhere(endpoint.port));
  return sockets;
}

std::optional<CoordinatorShell::Remote> listen_for_nodes(JobPlan& plan) {
  if (plan.one_node) return std::nullopt;
  std::vector<UniqueFd> sockets = listen_at_endpoint(plan.meeting.endpoint);
  CoordinatorShell::Remote remote{.listener = std::move(sockets.front()),
                                  .options = link_server_options(plan)};
  sockets.erase(sockets.begin());
  remote.more_listeners = std::move(sockets);
  plan.meeting.endpoint.port = port_of(remote.listener);
  plan.agent.coordinator = plan.meeting.endpoint.to_string();
  return remote;
}

// Another launcher there is one of this job, on the same machine. Whoever else holds the port will
// never answer, also where folders or arguments of its command have the launcher's name.
bool may_be_launcher(int port) {
  const auto owner = port_owner(port);
  return !owner || owner->program.empty() || owner->program == program_of("/proc/self");
}

// What this launcher's predecessor left there, the coordinator goes on from. A full disk is no
// reason to stop a job.
RecordKeeper keep_in_log(JobPlan& plan, std::function<void(const std::string&)> say) {
  if (plan.coordinator_log.empty()) return {};
  const auto warn = [say = std::move(say)](const SystemError& error) {
    say(concat(error.what(), "; a coordinator that is started again will not know where the job ",
               "stands"));
  };
  std::shared_ptr<CoordinatorLog> log;
  try {
    log = std::make_shared<CoordinatorLog>(plan.coordinator_log, plan.options.rdzv_id);
  } catch (const SystemError& error) {
    warn(error);
    return {};
  }
  plan.coordinator.record = log->last();
  plan.coordinator.former_host_is_gone = true;
  return [log, warn](const CoordinatorRecord& record, const std::function<void()>& kept) mutable {
    try {
      if (log) log->append(record);
    } catch (const SystemError& error) {
      warn(error);
      log.reset();
    }
    kept();
  };
}

}  // namespace

LinkServerOptions link_server_options(const JobPlan& plan) {
  return {.secret = plan.secret, .tls = plan.options.tls, .run_id = kLinkProtocol};
}

std::unique_ptr<CoordinatorLink> make_local_link(EventLoop& loop, const CoordinatorOptions& options,
                                                 std::optional<CoordinatorShell::Remote> remote,
                                                 RecordKeeper keeper,
                                                 CoordinatorLink::Callbacks callbacks) {
  return std::make_unique<LocalLink>(loop, options, std::move(remote), std::move(keeper),
                                     std::move(callbacks));
}

std::unique_ptr<CoordinatorLink> make_remote_link(EventLoop& loop, const JobPlan& plan,
                                                  const Endpoint& server,
                                                  CoordinatorLink::Callbacks callbacks) {
  return std::make_unique<RemoteLink>(loop,
                                      LinkClientOptions{.server = server,
                                                        .secret = plan.secret,
                                                        .tls = plan.options.tls,
                                                        .run_id = kLinkProtocol},
                                      std::move(callbacks));
}

std::unique_ptr<CoordinatorLink> make_coordinator_link(EventLoop& loop, JobPlan& plan,
                                                       CoordinatorLink::Callbacks callbacks) {
  if (!plan.etcd.servers.empty()) return make_etcd_link(loop, plan, std::move(callbacks));
  if (plan.agent.hosts_coordinator) {
    try {
      auto remote = listen_for_nodes(plan);
      auto keeper = keep_in_log(plan, callbacks.say);
      return make_local_link(loop, plan.coordinator, std::move(remote), std::move(keeper),
                             std::move(callbacks));
    } catch (const SystemError& error) {
      if (!plan.meeting.guessed || !may_be_launcher(plan.meeting.endpoint.port)) throw;
      callbacks.say(concat(error.what(), "; joining whoever is there"));
      plan.agent.hosts_coordinator = plan.meeting.hosts = false;
    }
  }
  return make_remote_link(loop, plan, plan.meeting.endpoint, std::move(callbacks));
}

}  // namespace lockstep
