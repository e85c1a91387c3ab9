#include "launch/worker_hub.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "control/frame.h"
#include "core/unix_socket.h"
#include "launch/descendants.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr int kAcceptsPerRound = 64;
constexpr int kMaxAncestors = 64;
constexpr int kReadsToCatchUp =
    64;  // of one worker: one that never stops talking must not hold us up
constexpr milliseconds kPlacePause{20};
constexpr int kHeartbeatsOfASpare = 5;  // without one it stands still, and is no use
constexpr milliseconds kAcceptPause{200};

// Who connected, by the kernel's word.
std::optional<ucred> credentials_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return std::nullopt;
  }
  return credentials;
}

std::optional<int> common_protocol(const WorkerHello& hello) {
  const int newest = std::min(hello.newest_protocol, kNewestWorkerProtocol);
  const int oldest = std::max(hello.oldest_protocol, kOldestWorkerProtocol);
  if (newest < oldest) return std::nullopt;
  return newest;
}

bool has_hung_up(int socket) {
  char byte = 0;
  return ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

}  // namespace

struct WorkerHub::Connection {
  UniqueFd socket;
  ucred peer{};
  EventLoop::Clock::time_point opened = EventLoop::Clock::now();
  EventLoop::TimerId timer{};  // until the worker is welcomed
  FrameDecoder decoder{kMaxWorkerMessageBytes};
  std::string output;
  bool overflowed = false;
  std::optional<WorkerHello> hello;
  std::optional<SlotPlace> place;  // once welcomed
  int protocol = 0;                // likewise
  EventLoop::Clock::time_point heard{};
};

WorkerHub::WorkerHub(EventLoop& loop, WorkerHubOptions options, Callbacks callbacks)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      listener_(listen_at_path(options_.socket_path)) {
  loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { on_connection(); });
}

WorkerHub::~WorkerHub() {
  loop_.cancel(resume_);
  loop_.unwatch(listener_.get());
  for (const auto& [fd, connection] : connections_) {
    loop_.cancel(connection->timer);
    loop_.unwatch(fd);
  }
  ::unlink(options_.socket_path.c_str());
}

void WorkerHub::on_connection() {
  for (int round = 0; round < kAcceptsPerRound; ++round) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      // Out of descriptors: the connection stays in the queue, and the loop would spin on it.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) pause_accepting();
      return;
    }
    adopt(std::move(socket));
  }
}

void WorkerHub::pause_accepting() {
  loop_.change(listener_.get(), 0);
  resume_ = loop_.after(kAcceptPause, [this] { loop_.change(listener_.get(), EPOLLIN); });
}

void WorkerHub::adopt(UniqueFd socket) {
  const auto peer = credentials_of(socket.get());
  if (!peer || peer->uid != ::geteuid()) {
    callbacks_.on_refused(concat("a process of user ", peer ? peer->uid : -1,
                                 " tried to connect to ", options_.socket_path));
    return;
  }
  if (connections_.size() >= options_.max_connections) {
    callbacks_.on_refused(concat("process ", peer->pid, " is one connection too many; ",
                                 options_.max_connections, " are open"));
    return;
  }
  const auto connection = std::make_shared<Connection>();
  connection->socket = std::move(socket);
  connection->peer = *peer;
  const int fd = connection->socket.get();
  connections_[fd] = connection;
  loop_.watch(fd, EPOLLIN,
              [this, connection](std::uint32_t events) { on_ready(connection, events); });
  connection->timer = loop_.after(options_.handshake_timeout, [this, connection] {
    refuse(connection, concat("process ", connection->peer.pid, " connected and said nothing"));
  });
}

void WorkerHub::on_ready(const Handle& connection, std::uint32_t events) {
  const Handle kept = connection;  // the reference dies with the watch
  if (events & EPOLLOUT) flush(*kept);
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) read(kept);
}

void WorkerHub::catch_up() {
  std::vector<Handle> welcomed;  // what is heard may change the map
  for (const auto* connections : {&slots_, &spares_}) {
    for (const auto& [number, connection] : *connections) welcomed.push_back(connection);
  }
  for (const Handle& connection : welcomed) read_all(connection);
}

void WorkerHub::read_all(const Handle& connection) {
  for (int round = 0; round < kReadsToCatchUp; ++round) {
    if (!connection->socket || !read(connection)) return;
  }
}

// False: nothing more is there.
bool WorkerHub::read(const Handle& connection) {
  std::array<char, 16 << 10> buffer;
  const ssize_t got = ::recv(connection->socket.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    drop(connection, got == 0 ? "it closed the connection" : std::strerror(errno));
    return false;
  }
  std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
  try {
    while (connection->socket) {
      const auto text = connection->decoder.next(bytes);
      if (!text) break;
      take_message(connection, *text);
    }
  } catch (const InvalidArgument& error) {
    if (connection->socket)
      refuse(connection, concat("it does not keep to the protocol: ", error.what()));
  }
  return true;
}

void WorkerHub::take_message(const Handle& connection, const std::string& text) {
  const MessageFromWorker message = decode_from_worker(text);
  if (!connection->place) return take_first_message(connection, message);
  connection->heard = EventLoop::Clock::now();
  if (connection->place->spare) return take_message_of_spare(message);
  const int slot = connection->place->slot;
  WorkerState& state = states_[slot];
  state.heard = connection->heard;
  if (const auto* beat = std::get_if<WorkerHeartbeat>(&message)) {
    if (beat->step != state.heartbeat.step) state.step_since = state.heard;
    state.heartbeat = *beat;
    callbacks_.on_heartbeat(slot, *beat);
  } else if (const auto* lost = std::get_if<WorkerLostPeers>(&message)) {
    callbacks_.on_lost_peers(slot, *lost);
  } else if (std::holds_alternative<WorkerLeaving>(message)) {
    state.leaving = true;
    callbacks_.on_leaving(slot);
  } else if (std::holds_alternative<WorkerHello>(message)) {
    throw InvalidArgument("a second hello");
  } else {
    take_recovery_message(*connection, message);
  }
}

void WorkerHub::take_recovery_message(const Connection& connection,
                                      const MessageFromWorker& message) {
  if (connection.protocol < kFirstRecoveringProtocol) {
    throw InvalidArgument(
        concat("a message of a later version than ", connection.protocol, ", which was agreed on"));
  }
  const int slot = connection.place->slot;
  if (const auto* recovers = std::get_if<WorkerRecovers>(&message)) {
    states_[slot].recovers = recovers->able ? std::optional(*recovers) : std::nullopt;
    callbacks_.on_recovers(slot, *recovers);
  } else if (const auto* rejected = std::get_if<WorkerRejected>(&message)) {
    callbacks_.on_rejected(slot, *rejected);
  }
}

void WorkerHub::take_message_of_spare(const MessageFromWorker& message) {
  if (!std::holds_alternative<WorkerHeartbeat>(message)) {
    throw InvalidArgument("a spare said more than that it is there");
  }
}

void WorkerHub::take_first_message(const Handle& connection, const MessageFromWorker& message) {
  const auto* hello = std::get_if<WorkerHello>(&message);
  if (hello == nullptr || connection->hello) {
    throw InvalidArgument("something else than one hello came first");
  }
  connection->hello = *hello;
  try_to_welcome(connection);
}

void WorkerHub::try_to_welcome(const Handle& connection) {
  const WorkerHello& hello = *connection->hello;
  const auto protocol = common_protocol(hello);
  if (!protocol) {
    return refuse(connection, concat("the program speaks versions ", hello.oldest_protocol, " to ",
                                     hello.newest_protocol,
                                     " of the workers' protocol, this "
                                     "launcher ",
                                     kOldestWorkerProtocol, " to ", kNewestWorkerProtocol));
  }
  const auto place = place_of_ancestor(connection->peer.pid);
  loop_.cancel(connection->timer);
  if (!place) {
    if (EventLoop::Clock::now() - connection->opened >= options_.handshake_timeout) {
      return refuse(connection, concat("process ", connection->peer.pid,
                                       " is no worker of this agent, nor descends from one"));
    }
    connection->timer =
        loop_.after(kPlacePause, [this, connection] { try_to_welcome(connection); });
    return;
  }
  if (hello.spare != place->spare.has_value()) {
    return refuse(connection, concat("process ", connection->peer.pid, " says that it is ",
                                     hello.spare ? "a spare; it was started as a worker"
                                                 : "a worker; it was started as a spare"));
  }
  if (!hello.spare && (hello.slot != place->slot || hello.epoch != place->epoch)) {
    return refuse(connection, concat("process ", connection->peer.pid, " says slot ", hello.slot,
                                     " of epoch ", hello.epoch, "; it was started for slot ",
                                     place->slot, " of epoch ", place->epoch));
  }
  connection->place = place;
  if (make_room(connection)) welcome(connection, *protocol);
}

// One connection a slot: the newest epoch's, else the first that is still there.
bool WorkerHub::make_room(const Handle& connection) {
  if (connection->place->spare && spares_.contains(*connection->place->spare)) {
    connection->place.reset();
    refuse(connection, "this spare is connected already");
    return false;
  }
  if (connection->place->spare) return true;
  const auto found = slots_.find(connection->place->slot);
  if (found == slots_.end()) return true;
  const Handle other = found->second;
  if (other->place->epoch < connection->place->epoch || has_hung_up(other->socket.get())) {
    drop(other, "another process took its place");
    return true;
  }
  const std::string reason = concat("slot ", connection->place->slot,
                                    " is connected already, by process ", other->peer.pid);
  connection->place.reset();
  refuse(connection, reason);
  return false;
}

void WorkerHub::welcome(const Handle& connection, int protocol) {
  connection->protocol = protocol;
  connection->heard = EventLoop::Clock::now();
  const std::optional<int> spare = connection->place->spare;
  spare ? void(spares_[*spare] = connection) : fill_slot(connection);
  send(connection, WorkerWelcome{.protocol = protocol,
                                 .epoch = connection->place->epoch,
                                 .heartbeat_interval = options_.heartbeat_interval,
                                 .replaces = options_.replaces});
  if (spare) return callbacks_.on_spare(*spare);
  callbacks_.on_hello(connection->place->slot, *connection->hello);
}

void WorkerHub::fill_slot(const Handle& connection) {
  const int slot = connection->place->slot;
  const auto now = EventLoop::Clock::now();
  slots_[slot] = connection;
  states_[slot] = {.hello = *connection->hello, .heard = now, .step_since = now, .connected = true};
}

bool WorkerHub::give_place(int spare, const SlotPlace& place, const TakePlace& take) {
  const auto found = spares_.find(spare);
  if (found == spares_.end()) return false;
  const Handle connection = found->second;
  read_all(connection);  // it may have gone
  const auto silence = EventLoop::Clock::now() - connection->heard;
  if (!connection->socket || connection->overflowed ||
      silence > kHeartbeatsOfASpare * options_.heartbeat_interval) {
    return false;
  }
  spares_.erase(spare);
  connection->place = place;
  const auto before = slots_.find(place.slot);
  if (before != slots_.end()) drop(Handle(before->second), "another process took its place");
  connection->hello->rank = connection->hello->slot = place.slot;
  connection->hello->epoch = place.epoch;
  fill_slot(connection);
  send(connection, take);
  callbacks_.on_hello(place.slot, *connection->hello);
  return true;
}

std::optional<SlotPlace> WorkerHub::place_of_ancestor(pid_t pid) const {
  for (int generation = 0; generation < kMaxAncestors && pid > 1; ++generation) {
    if (const auto place = callbacks_.place_of(pid)) return place;
    const auto process = read_process(pid);
    if (!process) return std::nullopt;
    pid = process->parent;
  }
  return std::nullopt;
}

bool WorkerHub::stop(int slot, const std::string& reason, milliseconds remaining) {
  return send(slot, StopWorker{.reason = reason, .remaining = remaining});
}

void WorkerHub::stop_all(const std::string& reason, milliseconds remaining) {
  for (const auto* connections : {&slots_, &spares_}) {
    for (const auto& [number, connection] : *connections) {
      send(connection, StopWorker{.reason = reason, .remaining = remaining});
    }
  }
}

bool WorkerHub::revoke(int slot, const RevokeWorld& revoke) {
  const auto found = slots_.find(slot);
  if (found == slots_.end() || found->second->protocol < kFirstRecoveringProtocol) return false;
  send(found->second, revoke);
  return true;
}

bool WorkerHub::announce(int slot, const NewWorld& world) {
  return send(slot, world);
}

bool WorkerHub::ping(int slot) {
  return send(slot, PingWorker{});
}

const WorkerState* WorkerHub::state(int slot) const {
  const auto found = states_.find(slot);
  return found == states_.end() ? nullptr : &found->second;
}

bool WorkerHub::send(int slot, const MessageToWorker& message) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) return false;
  send(found->second, message);
  return true;
}

void WorkerHub::send(const Handle& connection, const MessageToWorker& message) {
  if (connection->overflowed) return;
  connection->output += encode_frame(encode_to_worker(message));
  flush(*connection);
  if (connection->output.size() <= options_.max_queued_bytes) return;
  connection->overflowed = true;
  // Later, so that callbacks come from the loop only.
  loop_.after(milliseconds(0), [this, weak = std::weak_ptr(connection)] {
    const Handle slow = weak.lock();
    if (slow && slow->socket) drop(slow, "it does not read what it is sent");
  });
}

void WorkerHub::flush(Connection& connection) {
  const bool was_waiting = !connection.output.empty();
  while (!connection.output.empty()) {
    const ssize_t sent = ::send(connection.socket.get(), connection.output.data(),
                                connection.output.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) break;  // full; or broken, which reading will tell
    connection.output.erase(0, static_cast<std::size_t>(sent));
  }
  if (was_waiting) {
    loop_.change(connection.socket.get(), connection.output.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }
}

void WorkerHub::refuse(const Handle& connection, const std::string& reason) {
  const std::string frame = encode_frame(encode_to_worker(WorkerRefused{.reason = reason}));
  // One small write into an empty buffer; a peer that is gone needs no answer.
  [[maybe_unused]] const ssize_t sent =
      ::send(connection->socket.get(), frame.data(), frame.size(), MSG_NOSIGNAL);
  const bool was_welcome = connection->place.has_value();
  drop(connection, reason);
  if (!was_welcome) callbacks_.on_refused(reason);
}

void WorkerHub::drop(const Handle& connection, const std::string& reason) {
  const Handle kept = connection;
  loop_.cancel(kept->timer);
  loop_.unwatch(kept->socket.get());
  connections_.erase(kept->socket.get());
  kept->socket.reset();
  if (!kept->place) return;
  if (kept->place->spare) {
    spares_.erase(*kept->place->spare);
    return;
  }
  const auto found = slots_.find(kept->place->slot);
  if (found == slots_.end() || found->second != kept) return;
  slots_.erase(found);
  states_[kept->place->slot].connected = false;
  callbacks_.on_gone(kept->place->slot, reason);
}

}  // namespace lockstep
