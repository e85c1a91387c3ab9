#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::rpc {

/// Root of what a remote call can fail with. Which call it was is in the message.
class CallError : public Error {
 public:
  CallError(const std::string& message, std::string peer)
      : Error(message), peer_(std::move(peer)) {}
  /// Who was called.
  const std::string& peer() const { return peer_; }

 private:
  std::string peer_;
};

/// The function was run and threw.
class RemoteException : public CallError {
 public:
  RemoteException(const std::string& message, std::string peer, std::string type,
                  std::string remote_message)
      : CallError(message, std::move(peer)),
        type_(std::move(type)),
        remote_message_(std::move(remote_message)) {}
  const std::string& type() const { return type_; }  // "std::out_of_range"
  const std::string& remote_message() const { return remote_message_; }

 private:
  std::string type_, remote_message_;
};

/// No answer came in time. Whether the function was run is not known.
class CallTimeout : public CallError {
 public:
  using CallError::CallError;
};

/// No agent of that name appeared in time.
class NoSuchPeer : public CallError {
 public:
  using CallError::CallError;
};

class NoSuchFunction : public CallError {
 public:
  using CallError::CallError;
};

/// The object is not there: its reference was dropped, or the connection that it was lent to ended.
class NoSuchObject : public CallError {
 public:
  using CallError::CallError;
};

/// Caller and function disagree about the types. The function was not run.
class WrongTypes : public CallError {
 public:
  WrongTypes(const std::string& message, std::string peer, std::string called, std::string served)
      : CallError(message, std::move(peer)),
        called_(std::move(called)),
        served_(std::move(served)) {}
  const std::string& called() const { return called_; }  // the caller's: "i64,s->tensor"
  const std::string& served() const { return served_; }

 private:
  std::string called_, served_;
};

/// The peer's process ended, or the connection to it did. Whether the function was run is not
/// known.
class PeerDied : public CallError {
 public:
  using CallError::CallError;
};

/// The peer, or this agent, was shut down.
class ShutDown : public CallError {
 public:
  using CallError::CallError;
};

/// What came over the wire makes no sense, or is larger than allowed.
class BadMessage : public CallError {
 public:
  explicit BadMessage(const std::string& message, std::string peer = {})
      : CallError(message, std::move(peer)) {}
};

/// How a call failed, as it is kept and sent.
enum class FailureKind : std::uint8_t {
  remote_exception = 1,
  no_such_function,
  no_such_object,
  wrong_types,
  bad_message,
  shut_down,
  timeout,
  peer_died,  // from here on never sent
  no_such_peer,
};

struct Failure {
  FailureKind kind = FailureKind::bad_message;
  std::string detail;   // an exception's type, or a function's types
  std::string message;  // for people
};

/// Throws the type that belongs to the failure of calling `what` ("worker0's function 'add'").
[[noreturn]] void throw_failure(const Failure& failure, const std::string& peer,
                                const std::string& what, const std::string& signature);

}  // namespace lockstep::rpc
