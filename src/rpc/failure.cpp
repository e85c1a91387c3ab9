#include "lockstep/rpc_error.h"

namespace lockstep::rpc {

void throw_failure(const Failure& failure, const std::string& peer, const std::string& what,
                   const std::string& signature) {
  const std::string text = concat("rpc: ", what, ": ", failure.message);
  switch (failure.kind) {
    case FailureKind::remote_exception:
      throw RemoteException(concat("rpc: ", what, " threw ", failure.detail, ": ", failure.message),
                            peer, failure.detail, failure.message);
    case FailureKind::no_such_function:
      throw NoSuchFunction(text, peer);
    case FailureKind::no_such_object:
      throw NoSuchObject(text, peer);
    case FailureKind::wrong_types:
      throw WrongTypes(concat("rpc: ", what, " is ", failure.detail, ", but was called as ",
                              signature, "; use the same types on both sides"),
                       peer, signature, failure.detail);
    case FailureKind::bad_message:
      throw BadMessage(text, peer);
    case FailureKind::shut_down:
      throw ShutDown(text, peer);
    case FailureKind::timeout:
      throw CallTimeout(text, peer);
    case FailureKind::peer_died:
      throw PeerDied(text, peer);
    case FailureKind::no_such_peer:
      throw NoSuchPeer(text, peer);
  }
  throw BadMessage(text, peer);
}

}  // namespace lockstep::rpc
