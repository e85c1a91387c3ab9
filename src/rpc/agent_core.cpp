#include "rpc/agent_core.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/hmac.h"
#include "shm/shared_segment.h"

namespace lockstep::rpc::detail {
namespace {

constexpr std::size_t kMaxIdleSegmentBytes = std::size_t{256} << 20;
constexpr std::size_t kMaxStrangers = 64;
constexpr const char* kLinkName = "lockstep-rpc";  // no node of a job takes it for its own

void check_name(const char* what, const std::string& name) {
  const bool fine = std::ranges::all_of(name, [](unsigned char each) {
    return std::isalnum(each) || each == '_' || each == '-' || each == '.';
  });
  if (name.empty() || name.size() > kMaxNameBytes || !fine) {
    throw InvalidArgument(concat("rpc: ", what, " is \"", name,
                                 "\"; it must have 1 to 200 letters, digits, '_', '-' or '.'"));
  }
}

std::string to_hex(const std::string& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char each : bytes) text.append({kDigits[each >> 4], kDigits[each & 15]});
  return text;
}

}  // namespace

/// Accepts connections, on the loop's thread.
class AgentCore::Listener : public EventLoop::Handler {
 public:
  Listener(UniqueFd socket, std::function<void(int)> accept)
      : socket_(std::move(socket)), accept_(std::move(accept)) {}

  void on_events(std::uint32_t) override { accept_(socket_.get()); }
  EventLoop::Time on_time(EventLoop::Time) override { return EventLoop::Time::max(); }
  int descriptor() const { return socket_.get(); }

  std::uint64_t number = 0;

 private:
  UniqueFd socket_;
  std::function<void(int)> accept_;
};

AgentCore::AgentCore(std::shared_ptr<Directory> directory, AgentOptions options)
    : options_(std::move(options)), directory_(std::move(directory)) {
  check_name("name", options_.name);
  if (options_.threads < 1 || options_.max_calls < 1) {
    throw InvalidArgument(concat("rpc: threads is ", options_.threads, " and max_calls ",
                                 options_.max_calls, "; both must be at least 1"));
  }
  if (!options_.secret.empty() && options_.secret.size() < 16) {
    throw InvalidArgument("rpc: secret has less than 16 bytes; make it of random ones");
  }
  pool_ = std::make_shared<HandlerPool>(options_.threads);
  loop_ = std::make_shared<EventLoop>();
  if (options_.share_memory && may_share_memory()) {
    segments_ = SegmentPool::create(kMaxIdleSegmentBytes,
                                    [table = std::weak_ptr(connections_)](std::uint64_t segment) {
                                      const auto alive = table.lock();
                                      if (!alive) return;
                                      for (const auto& connection : alive->all())
                                        connection->forget_segment(segment);
                                    });
  }

  address_.machine = machine_identity();
  address_.process_id = getpid();
  address_.unix_name = concat("lockstep-rpc-", getpid(), "-", to_hex(random_bytes(8)));
  const auto listen = [this](UniqueFd socket, bool local) {
    auto listener = std::make_shared<Listener>(
        std::move(socket), [this, local](int each) { accept_from(each, local); });
    listener->number = loop_->add(listener->descriptor(), EPOLLIN, listener);
    listeners_.push_back(std::move(listener));
  };
  if (!options_.address.empty()) {
    secret();
    address_.tcp_address = options_.address;
    listen(listen_tcp(options_.address, &address_.tcp_port), false);
  }
  listen(listen_unix(address_.unix_name), true);
}

void AgentCore::publish() {
  directory_->set(concat("agent/", options_.name), address_.to_text());
}

AgentCore::~AgentCore() {
  close();
}

std::string AgentCore::secret() {
  const std::lock_guard lock(mutex_);
  if (secret_.empty()) {
    secret_ = options_.secret.empty() ? directory_->set_once("secret", to_hex(random_bytes(32)))
                                      : options_.secret;
  }
  return secret_;
}

Connection::Options AgentCore::connection_options(bool calls, bool local) {
  Connection::Options result;
  result.calls = calls;
  result.local = local;
  result.hello = {.version = kWireVersion,
                  .max_calls = static_cast<std::uint32_t>(options_.max_calls),
                  .name = options_.name};
  result.limits = {.message_bytes = options_.max_message_bytes,
                   .partial_bytes = 2 * options_.max_message_bytes};
  if (local) {
    result.pool = segments_;
    return result;
  }
  using Protection = AgentOptions::Protection;
  result.link = LinkSessionOptions{.role = calls ? LinkRole::client : LinkRole::server,
                                   .secret = secret(),
                                   .tls = options_.protection == Protection::encrypted,
                                   .run_id = kLinkName,
                                   .nonce = random_bytes(kLinkNonceBytes)};
  // Who protects frames otherwise is another job, as far as the handshake goes.
  if (options_.protection == Protection::handshake) {
    result.link_carries_frames = false;
    result.link->run_id += "-bare";
  }
  return result;
}

Connection::Events AgentCore::events() {
  return {.on_call = [this](const std::shared_ptr<Connection>& connection,
                            Received message) { on_call(connection, std::move(message)); },
          .on_drop_object = [this](Connection& connection,
                                   std::uint64_t object) { on_drop_object(connection, object); },
          .on_closed = [this](Connection& connection) { on_closed(connection); }};
}

void AgentCore::accept_from(int listener, bool local) {
  for (;;) {
    UniqueFd socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    if (closing_ || (local && !is_own_user(socket.get()))) continue;
    if (!local) {
      prepare_tcp(socket.get());
      make_room_for_strangers();
    }
    try {
      connections_->add(
          Connection::open(std::move(socket), connection_options(false, local), events(), loop_));
    } catch (const std::exception&) {
      // No descriptor, no memory or no OpenSSL for it: the peer sees that the connection ends.
    }
  }
}

// Who has proven nothing keeps nobody else out.
void AgentCore::make_room_for_strangers() {
  std::vector<std::shared_ptr<Connection>> strangers;
  for (const auto& connection : connections_->all()) {
    if (!connection->local() && !connection->ready()) strangers.push_back(connection);
  }
  if (strangers.size() < kMaxStrangers) return;
  strangers.front()->end({.kind = FailureKind::peer_died, .detail = {}, .message = "too many"});
}

PeerAddress AgentCore::look_up(const std::string& peer, Time deadline) {
  for (auto pause = std::chrono::milliseconds(1);;) {
    if (const auto text = directory_->find(concat("agent/", peer))) {
      if (auto address = PeerAddress::parse(*text)) return *address;
    }
    const Time now = std::chrono::steady_clock::now();
    if (closing_ || now >= deadline) {
      throw NoSuchPeer(concat("rpc: no agent has the name '", peer, "'"), peer);
    }
    std::this_thread::sleep_for(std::min<Time::duration>(pause, deadline - now));
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

// The connection to a peer, made if need be. Null: the call has failed.
std::shared_ptr<Connection> AgentCore::connect(const std::string& peer, PendingCall& call) {
  {
    std::unique_lock lock(mutex_);
    Route& route = routes_[peer];
    if (!connected_.wait_until(lock, call.deadline, [&] { return !route.connecting; })) {
      lock.unlock();
      fail_call(call, peer,
                {.kind = FailureKind::timeout,
                 .detail = {},
                 .message = "another call was still connecting"});
      return nullptr;
    }
    if (route.connection && !route.connection->closed() && !closing_) return route.connection;
    route.connecting = true;
  }
  std::shared_ptr<Connection> made;
  try {
    made = make_connection(peer, call);
  } catch (const std::exception& error) {  // no socket, memory or OpenSSL; or the loop has ended
    const auto kind = closing_ ? FailureKind::shut_down : FailureKind::no_such_peer;
    fail_call(call, peer, {.kind = kind, .detail = {}, .message = error.what()});
  }
  const std::lock_guard lock(mutex_);
  Route& route = routes_[peer];
  route.connecting = false;
  route.connection = made;
  connected_.notify_all();
  return made;
}

std::shared_ptr<Connection> AgentCore::make_connection(const std::string& peer, PendingCall& call) {
  const auto fail = [&](FailureKind kind, std::string message) {
    fail_call(call, peer, {.kind = kind, .detail = {}, .message = std::move(message)});
    return nullptr;
  };
  if (closing_) return fail(FailureKind::shut_down, "this agent was shut down");
  PeerAddress address;
  try {
    address = look_up(peer, call.deadline);
  } catch (const std::exception& error) {
    if (closing_) return fail(FailureKind::shut_down, "this agent was shut down");
    return fail(FailureKind::no_such_peer, error.what());
  }
  const bool local = address.machine == address_.machine;
  if (!local && address.tcp_address.empty()) {
    return fail(FailureKind::no_such_peer,
                "it is on another machine and listens on no network (AgentOptions::address)");
  }
  Connected connected = local ? connect_unix(address.unix_name, call.deadline)
                              : connect_tcp(address.tcp_address, address.tcp_port, call.deadline);
  if (!connected.socket) {
    const std::string who =
        concat("process ", address.process_id,
               local ? "" : concat(" at ", address.tcp_address, ":", address.tcp_port));
    if (connected.refused) return fail(FailureKind::peer_died, concat(who, " is gone"));
    return fail(FailureKind::timeout, concat("connecting to ", who, ": ", connected.failure));
  }
  Connection::Options options = connection_options(true, local);
  options.expected_name = peer;
  auto connection =
      Connection::open(std::move(connected.socket), std::move(options), events(), loop_);
  connections_->add(connection);
  if (closing_ || !connection->wait_ready(call.deadline)) {
    const bool ended_itself = connection->closed();
    connection->end(
        {.kind = FailureKind::peer_died, .detail = {}, .message = "it does not answer"});
    if (closing_) return fail(FailureKind::shut_down, "this agent was shut down");
    if (ended_itself) {
      fail_call(call, peer, connection->failure());
      return nullptr;
    }
    return fail(FailureKind::timeout, "it did not say hello in time");
  }
  return connection;
}

PendingCall AgentCore::pending(const Call& call, const char* kind, std::string signature) {
  const auto timeout = call.timeout.count() > 0 ? call.timeout : options_.timeout;
  const auto executor = [pool = std::weak_ptr(pool_)](Task task) {
    if (const auto alive = pool.lock()) {
      alive->run(std::move(task));
    } else {
      task();
    }
  };
  return {.state = std::make_shared<CallState>(executor),
          .deadline = std::chrono::steady_clock::now() + timeout,
          .timeout = timeout,
          .what = concat(kind, " '", call.function, "'"),
          .signature = std::move(signature)};
}

std::shared_ptr<CallState> AgentCore::start(const Call& call, std::string signature,
                                            Payload payload) {
  check_name("a peer's name", call.peer);
  MessageHead head;
  head.function = call.function;
  head.signature = signature;
  check_call(head, payload, options_.max_message_bytes);
  PendingCall pending_call = pending(call, "function", std::move(signature));
  std::shared_ptr<CallState> state = pending_call.state;
  if (const auto connection = connect(call.peer, pending_call)) {
    connection->call(std::move(pending_call), std::move(head), std::move(payload));
  }
  return state;
}

std::shared_ptr<RemoteObject> AgentCore::make_object(const Call& call, std::string signature,
                                                     Payload payload) {
  check_name("a peer's name", call.peer);
  MessageHead head;
  head.object = kNewObject;
  head.function = call.function;
  head.signature = signature;
  check_call(head, payload, options_.max_message_bytes);
  PendingCall pending_call = pending(call, "class", std::move(signature));
  const std::shared_ptr<CallState> state = pending_call.state;
  const auto connection = connect(call.peer, pending_call);
  if (connection) connection->call(std::move(pending_call), std::move(head), std::move(payload));
  Reader in(state->answer());
  const auto number = in.number<std::uint64_t>();
  return std::make_shared<RemoteObject>(
      connection, number,
      RemoteObject::Limits{.timeout = options_.timeout,
                           .message_bytes = options_.max_message_bytes},
      state->executor());
}

Blob AgentCore::shared_memory(std::size_t bytes) {
  if (segments_) {
    if (auto segment = segments_->take(bytes)) {
      std::byte* data = segment->data();
      return {.data = data, .bytes = bytes, .owner = std::move(segment)};
    }
  }
  auto memory = std::make_shared_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1));
  std::byte* data = memory.get();
  return {.data = data, .bytes = bytes, .owner = std::move(memory)};
}

void AgentCore::shutdown(std::chrono::milliseconds timeout) {
  const Time deadline = std::chrono::steady_clock::now() + timeout;
  if (world_size_ > 1) directory_->set(concat("left/", rank_), "1");
  std::set<int> missing;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_) missing.insert(rank);
  }
  while (!missing.empty() && !closing_) {
    std::erase_if(missing,
                  [this](int rank) { return directory_->find(concat("left/", rank)).has_value(); });
    if (missing.empty() || std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  close();
  if (missing.empty()) return;
  std::string list;
  for (const int rank : missing) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  throw Timeout(concat("rpc: '", options_.name, "' was shut down without rank ", list,
                       ", which did not shut down within ", timeout.count(), " ms"),
                {missing.begin(), missing.end()});
}

// Until all connections have ended, or nothing moves any more.
void AgentCore::wait_for_answers_to_leave() {
  const auto queued_bytes = [this] {
    std::size_t bytes = 0;
    for (const auto& connection : connections_->all()) bytes += connection->queued_bytes();
    return bytes;
  };
  for (std::size_t before = queued_bytes();;) {
    if (connections_->wait_empty(std::chrono::seconds(before > 0 ? 3 : 1))) return;
    const std::size_t now = queued_bytes();
    if (now >= before) return;
    before = now;
  }
}

void AgentCore::close() {
  if (pool_ && pool_->is_own_thread()) {
    throw InvalidArgument("rpc: an agent cannot be closed by a function that it serves");
  }
  if (closed_.exchange(true)) return;
  closing_ = true;
  for (const auto& listener : listeners_) loop_->remove(listener->number, listener->descriptor());
  listeners_.clear();
  const Failure failure{
      .kind = FailureKind::shut_down, .detail = {}, .message = "this agent was shut down"};
  // Functions that run may wait for calls of their own.
  for (const auto& connection : connections_->all()) {
    connection->fail_pending(failure);
    if (!connection->ready()) connection->end(failure);
  }
  pool_->stop();
  for (const auto& connection : connections_->all()) connection->say_goodbye();
  // Who hears it ends the connection; who does not listen is not waited for long.
  wait_for_answers_to_leave();
  for (const auto& connection : connections_->all()) connection->end(failure);
  connections_->wait_empty(std::chrono::seconds(5));
  loop_->stop();
}

}  // namespace lockstep::rpc::detail
