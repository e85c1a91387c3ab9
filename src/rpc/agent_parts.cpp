#include "rpc/agent_parts.h"

namespace lockstep::rpc::detail {

void ConnectionTable::add(const std::shared_ptr<Connection>& connection) {
  const std::lock_guard lock(mutex_);
  // One that has been closed in the meantime was taken out before it was in.
  if (!connection->closed()) connections_.emplace(connection->number(), connection);
}

void ConnectionTable::remove(std::uint64_t number) {
  std::shared_ptr<Connection> connection;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(number);
  if (found == connections_.end()) return;
  connection = std::move(found->second);
  connections_.erase(found);
  changed_.notify_all();
}

std::vector<std::shared_ptr<Connection>> ConnectionTable::all() const {
  std::vector<std::shared_ptr<Connection>> result;
  const std::lock_guard lock(mutex_);
  for (const auto& [number, connection] : connections_) result.push_back(connection);
  return result;
}

bool ConnectionTable::wait_empty(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [this] { return connections_.empty(); });
}

void check_call(const MessageHead& head, const Payload& payload, std::size_t max_message_bytes) {
  std::size_t bytes = payload.bytes.size();
  for (const Blob& blob : payload.blobs) bytes += blob.bytes;
  if (bytes > max_message_bytes) {
    throw InvalidArgument(concat("rpc: the arguments of '", head.function, "' have ", bytes,
                                 " bytes; at most ", max_message_bytes,
                                 " are allowed (max_message_bytes)"));
  }
  if (head.function.size() > kMaxNameBytes || head.signature.size() > kMaxSignatureBytes ||
      payload.blobs.size() > kMaxBlobs) {
    throw InvalidArgument(concat("rpc: '", head.function.substr(0, 40), "' has a name of ",
                                 head.function.size(), " bytes, types of ", head.signature.size(),
                                 " and ", payload.blobs.size(), " tensors; at most ", kMaxNameBytes,
                                 ", ", kMaxSignatureBytes, " and ", kMaxBlobs, " are allowed"));
  }
}

std::shared_ptr<CallState> RemoteObject::call(std::chrono::milliseconds timeout,
                                              const std::string& method, std::string signature,
                                              Payload payload) {
  const auto limit = timeout.count() > 0 ? timeout : limits_.timeout;
  MessageHead head;
  head.object = number_;
  head.function = method;
  head.signature = signature;
  check_call(head, payload, limits_.message_bytes);
  PendingCall pending{.state = std::make_shared<CallState>(executor_),
                      .deadline = std::chrono::steady_clock::now() + limit,
                      .timeout = limit,
                      .what = concat("method '", method, "'"),
                      .signature = std::move(signature),
                      .object = shared_from_this()};
  auto state = pending.state;
  connection_->call(std::move(pending), std::move(head), std::move(payload));
  return state;
}

std::shared_ptr<CallState> call_object(const std::shared_ptr<RemoteObject>& object,
                                       std::chrono::milliseconds timeout, const std::string& method,
                                       std::string signature, Payload payload) {
  return object->call(timeout, method, std::move(signature), std::move(payload));
}

}  // namespace lockstep::rpc::detail
