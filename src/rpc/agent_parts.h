#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/rpc.h"
#include "rpc/connection.h"

namespace lockstep::rpc::detail {

/// All connections of an agent. Thread-safe.
class ConnectionTable {
 public:
  void add(const std::shared_ptr<Connection>& connection);
  void remove(std::uint64_t number);
  std::vector<std::shared_ptr<Connection>> all() const;
  /// Whether there are none, within that time.
  bool wait_empty(std::chrono::milliseconds time);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, std::shared_ptr<Connection>> connections_;
};

/// Throws InvalidArgument for a call that is too large to be sent.
void check_call(const MessageHead& head, const Payload& payload, std::size_t max_message_bytes);

/// An object that lives at a peer, which hears when nobody here has it any more.
class RemoteObject : public std::enable_shared_from_this<RemoteObject> {
 public:
  struct Limits {
    std::chrono::milliseconds timeout;  // of calls that name none
    std::size_t message_bytes;
  };

  RemoteObject(std::shared_ptr<Connection> connection, std::uint64_t number, Limits limits,
               std::function<void(Task)> executor)
      : connection_(std::move(connection)),
        number_(number),
        limits_(limits),
        executor_(std::move(executor)) {}
  ~RemoteObject() { connection_->send(FrameKind::drop_object, number_); }
  RemoteObject(const RemoteObject&) = delete;
  RemoteObject& operator=(const RemoteObject&) = delete;

  std::shared_ptr<CallState> call(std::chrono::milliseconds timeout, const std::string& method,
                                  std::string signature, Payload payload);

 private:
  std::shared_ptr<Connection> connection_;
  std::uint64_t number_;
  Limits limits_;
  std::function<void(Task)> executor_;
};

}  // namespace lockstep::rpc::detail
