#include "launch/store_service.h"

#include <sys/epoll.h>
#include <bit>
#include <utility>

#include "control/store_arrival.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A client that has this much unread is not served further until it has read it. Torch's clients
// have one request in flight and never get there.
constexpr std::size_t kPauseBytes = 1 << 20;
constexpr std::size_t kReasonsKept = 100;
constexpr std::size_t kAwaitedKeysTold = 64;

}  // namespace

StoreService::StoreService(UniqueFd listener, std::size_t max_bytes, Log log)
    : listener_(loop_, std::move(listener),
                {.accepted = [this](UniqueFd socket,
                                    const StorePeer& peer) { add(std::move(socket), peer); },
                 .refused = [this](const std::string& reason) { refused(reason); },
                 .log =
                     [this](const std::string& line) {
                       if (log_) log_(line);
                     }}),
      max_bytes_(max_bytes),
      log_(std::move(log)),
      data_({.bytes = max_bytes}) {}

void StoreService::turn(std::chrono::milliseconds limit) {
  loop_.run_once(to_resume_.empty() ? limit : std::chrono::milliseconds(0));
  for (const StoreClientId id : std::exchange(to_resume_, {})) {
    const auto found = connections_.find(id);
    if (found != connections_.end()) run_requests(id, *found->second);
  }
  // After all of the turn's requests: several replies to one client go out together.
  send_all();
}

void StoreService::new_keyspace(std::uint64_t epoch) {
  for (const auto& [id, connection] : connections_) loop_.unwatch(connection->descriptor());
  connections_.clear();
  buffered_bytes_ = 0;
  to_send_.clear();
  to_resume_.clear();
  data_ = StoreData({.bytes = max_bytes_});
  epoch_ = epoch;
  // Connections that only the kernel has accepted belong to the old epoch as well.
  listener_.turn_away_waiting();
}

void StoreService::allow(std::set<IpAddress> addresses) {
  listener_.allow(std::move(addresses));
  std::vector<StoreClientId> gone;
  for (const auto& [id, connection] : connections_) {
    if (!listener_.is_allowed(connection->peer())) gone.push_back(id);
  }
  for (const StoreClientId id : gone) {
    refused(concat(connections_.at(id)->peer().address.to_string(), ": no longer part of the job"));
    drop(id);
  }
}

void StoreService::add(UniqueFd socket, const StorePeer& peer) {
  const StoreClientId id = ++last_id_;
  auto connection = std::make_unique<StoreConnection>(std::move(socket), peer);
  connection->events = EPOLLIN;
  try {
    loop_.watch(connection->descriptor(), connection->events,
                [this, id](std::uint32_t events) { on_events(id, events); });
  } catch (const SystemError& error) {
    return refused(concat(peer.address.to_string(), ": ", error.what()));
  }
  connections_.emplace(id, std::move(connection));
}

void StoreService::on_events(StoreClientId id, std::uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  StoreConnection& connection = *found->second;
  if (events & EPOLLOUT) mark_to_send(id, connection);
  if (connection.paused) {
    if (events & (EPOLLHUP | EPOLLERR)) drop(id);
    return;
  }
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  if (!connection.receive()) return drop(id);
  run_requests(id, connection);
}

void StoreService::run_requests(StoreClientId id, StoreConnection& connection) {
  std::string problem;
  while (problem.empty() && connection.unsent_bytes() < kPauseBytes) {
    const StoreRequest* request = connection.scanner().next();
    if (!request) break;
    connection.last_request = std::chrono::steady_clock::now();
    problem = run_one(id, connection, *request);
  }
  if (problem.empty()) problem = connection.scanner().problem();
  count_bytes(connection);
  if (problem.empty() && data_.bytes() + buffered_bytes_ > max_bytes_) {
    problem = concat("the store's memory is used up (", max_bytes_, " bytes with its buffers)");
  }
  if (!problem.empty()) return fail(id, connection, problem);
  connection.paused = connection.unsent_bytes() >= kPauseBytes;
}

std::string StoreService::run_one(StoreClientId id, StoreConnection& connection,
                                  const StoreRequest& request) {
  if (request.command == StoreCommand::ping) {
    connection.pid = static_cast<std::uint32_t>(request.number);
  }
  const StoreOutcome outcome = data_.execute(id, request);
  for (const StoreReply& reply : outcome.replies) {
    if (reply.client == id) {
      connection.append(reply.bytes);
      mark_to_send(id, connection);
    } else {
      deliver(reply);
    }
  }
  return outcome.problem;
}

void StoreService::deliver(const StoreReply& reply) {
  const auto found = connections_.find(reply.client);
  LOCKSTEP_CHECK(found != connections_.end(), "client ", reply.client);
  found->second->append(reply.bytes);
  mark_to_send(reply.client, *found->second);
}

void StoreService::mark_to_send(StoreClientId id, StoreConnection& connection) {
  if (std::exchange(connection.to_send, true)) return;
  to_send_.push_back(id);
}

void StoreService::send_all() {
  for (const StoreClientId id : std::exchange(to_send_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    StoreConnection& connection = *found->second;
    connection.to_send = false;
    if (!connection.send()) {
      drop(id);
      continue;
    }
    count_bytes(connection);
    if (connection.unsent_bytes() == 0 && std::exchange(connection.paused, false)) {
      to_resume_.push_back(id);
    }
    watch_for(connection,
              (connection.paused ? 0u : EPOLLIN) | (connection.unsent_bytes() > 0 ? EPOLLOUT : 0u));
  }
}

void StoreService::watch_for(StoreConnection& connection, std::uint32_t events) {
  if (std::exchange(connection.events, events) != events) {
    loop_.change(connection.descriptor(), events);
  }
}

void StoreService::count_bytes(StoreConnection& connection) {
  const std::size_t held = connection.held_bytes();
  buffered_bytes_ += held;
  buffered_bytes_ -= std::exchange(connection.counted_bytes, held);
}

void StoreService::fail(StoreClientId id, StoreConnection& connection, const std::string& problem) {
  connection.send();  // replies to what it asked before
  refused(concat(connection.peer().address.to_string(),
                 connection.pid ? concat(" (process ", connection.pid, ")") : "", ": ", problem));
  drop(id);
}

void StoreService::drop(StoreClientId id) {
  const auto found = connections_.find(id);
  loop_.unwatch(found->second->descriptor());
  buffered_bytes_ -= found->second->counted_bytes;
  data_.remove_client(id);
  connections_.erase(found);
}

// Says so the first, second, fourth, eighth time: a client that comes again and again does not fill
// the log.
void StoreService::refused(const std::string& reason) {
  const bool known = refusals_.contains(reason) || refusals_.size() < kReasonsKept;
  const std::string kept = known ? reason : "connections closed for further reasons";
  const std::uint64_t times = ++refusals_[kept];
  if (!std::has_single_bit(times) || !log_) return;
  log_(concat("store: connection closed: ", kept,
              times > 1 ? concat(" (", times, " times by now)") : ""));
}

StoreStatus StoreService::status() const {
  StoreStatus status{
      .epoch = epoch_, .keys = data_.number_of_keys(), .bytes = data_.bytes() + buffered_bytes_};
  data_.for_each_key([&](const std::string& key) {
    if (is_arrival_key(key)) status.arrival_keys.push_back(key);
  });
  for (const auto& [id, connection] : connections_) {
    status.clients.push_back({.pid = connection->pid,
                              .address = connection->peer().address.to_string(),
                              .port = connection->peer().port,
                              .awaited_keys = data_.awaited_keys(id, kAwaitedKeysTold),
                              .last_request = connection->last_request});
  }
  for (const auto& [reason, times] : refusals_) status.refusals.push_back({reason, times});
  return status;
}

}  // namespace lockstep
