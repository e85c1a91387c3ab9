#include "launch/store_forwarder.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {

StoreForwarder::StoreForwarder(EventLoop& loop, Callbacks callbacks)
    : loop_(loop),
      callbacks_(std::move(callbacks)),
      streams_(loop,
               {.send = callbacks_.send, .queued_bytes = callbacks_.queued_bytes, .connect = {}}) {}

int StoreForwarder::open(Epoch epoch) {
  close();
  // A new port each time: a worker of an old epoch that connects late must not find the new one.
  UniqueFd socket = listen_on("127.0.0.1", 0);
  const int port = port_of(socket);
  epoch_ = epoch;
  listener_.emplace(
      loop_, std::move(socket),
      StoreListener::Callbacks{
          .accepted = [this](UniqueFd client, const StorePeer&) { take(std::move(client)); },
          .refused = callbacks_.log,
          .log = callbacks_.log});
  return port;
}

void StoreForwarder::close() {
  listener_.reset();
  waiting_.clear();
  streams_.close_all(/*tell=*/connected_);
}

void StoreForwarder::take(UniqueFd socket) {
  // Requests are small, and each waits for the answer to the one before.
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (connected_) {
    streams_.add(std::move(socket), epoch_);
  } else {
    waiting_.push_back(std::move(socket));
  }
}

void StoreForwarder::on_connected() {
  connected_ = true;
  for (UniqueFd& socket : std::exchange(waiting_, {})) streams_.add(std::move(socket), epoch_);
}

void StoreForwarder::on_disconnected() {
  connected_ = false;
  streams_.close_all(/*tell=*/false);
}

}  // namespace lockstep
