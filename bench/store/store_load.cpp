// Loads a store of torch's protocol from one thread: many connections, each with one request in
// flight, as torch's clients have.
//
//   store_load PORT CONNECTIONS SECONDS
//
// A connection goes round in six requests: ADD a key of its own, WAIT for its neighbour's (which
// has often not come yet), DELETE that, WAIT for and GET a value of 64 bytes, ADD to a counter that
// all share. Prints requests per second and the median and 99th percentile of a request in
// microseconds.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/unique_fd.h"
#include "lockstep/error.h"
#include "tests/support/store_wire.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kValueBytes = 64;
constexpr int kStepsOfARound = 6;

class Connection {
 public:
  Connection(int port, int index) : index_(index), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      throw_errno("connect");
    }
    send(wire::validate() + wire::ping(static_cast<std::uint32_t>(index)), 4);
  }

  int descriptor() const { return socket_.get(); }
  Clock::time_point asked() const { return asked_; }

  void send(const std::string& request, std::size_t reply_bytes) {
    if (::send(socket_.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size())) {
      throw_errno("send");
    }
    expected_ = reply_bytes;
    asked_ = Clock::now();
  }

  /// Reads. True when the whole reply is there.
  bool reply_is_there() {
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) throw SystemError("the server closed the connection");
    expected_ -= std::min(expected_, static_cast<std::size_t>(count));
    return expected_ == 0;
  }

  void send_next() {
    const std::string own = concat("/from_", index_, "/", round_);
    const std::string neighbours = concat("/from_", index_ ^ 1, "/", round_);
    switch (step_) {
      case 0:
        send(wire::request(StoreCommand::add, own, 1), 8);
        break;
      case 1:
        send(wire::list(StoreCommand::wait, {neighbours}), 1);
        break;
      case 2:
        send(wire::request(StoreCommand::delete_key, {neighbours}), 8);
        break;
      case 3:
        send(wire::list(StoreCommand::wait, {"/value"}), 1);
        break;
      case 4:
        send(wire::request(StoreCommand::get, {"/value"}), 8 + kValueBytes);
        break;
      default:
        send(wire::request(StoreCommand::add, "/counter", 1), 8);
        ++round_;
    }
    step_ = (step_ + 1) % kStepsOfARound;
  }

 private:
  int index_;
  UniqueFd socket_;
  std::size_t expected_ = 0;
  Clock::time_point asked_;
  int step_ = 0;
  std::uint64_t round_ = 0;
};

void run(int port, int count, double seconds) {
  std::vector<Connection> connections;
  for (int i = 0; i < count; ++i) connections.emplace_back(port, i);
  // The clock starts when the server has let everybody in.
  for (Connection& connection : connections) {
    while (!connection.reply_is_there()) {
    }
  }
  connections[0].send(
      wire::request(StoreCommand::set, {"/value", std::string(kValueBytes, 'v')}) + wire::ping(0),
      4);
  while (!connections[0].reply_is_there()) {
  }

  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  for (Connection& connection : connections) {
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
    ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, connection.descriptor(), &event);
    connection.send_next();
  }
  const auto start = Clock::now();
  const auto end =
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  std::vector<std::uint32_t> microseconds;
  std::array<epoll_event, 256> events;
  auto now = start;
  while (now < end) {
    const int ready = ::epoll_wait(epoll.get(), events.data(), events.size(), 1000);
    for (int i = 0; i < ready; ++i) {
      auto& connection = *static_cast<Connection*>(events[i].data.ptr);
      if (!connection.reply_is_there()) continue;
      now = Clock::now();
      microseconds.push_back(static_cast<std::uint32_t>(
          std::chrono::duration_cast<std::chrono::microseconds>(now - connection.asked()).count()));
      connection.send_next();
    }
    now = Clock::now();
  }
  if (microseconds.empty()) throw SystemError("the server answered nothing");
  const double elapsed = std::chrono::duration<double>(now - start).count();
  std::ranges::sort(microseconds);
  std::printf("%.0f %u %u\n", static_cast<double>(microseconds.size()) / elapsed,
              microseconds[microseconds.size() / 2], microseconds[microseconds.size() * 99 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: store_load PORT CONNECTIONS SECONDS\n");
    return 2;
  }
  try {
    run(std::atoi(argv[1]), std::atoi(argv[2]), std::atof(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_load: %s\n", error.what());
    return 1;
  }
}
