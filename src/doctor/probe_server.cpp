#include "doctor/probe_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <charconv>
#include <system_error>

#include "doctor/probe_session.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = ProbeSession::Clock;

constexpr int kMostConnections = 16;
constexpr std::chrono::seconds kHandshakeLimit{5};
constexpr std::chrono::seconds kConversationLimit{60};

void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

// The client leads: "who" is answered by the node's id, "echo" by itself, and "take N" by "go" and,
// after N raw bytes, "took".
void converse(ProbeSession& session, const std::string& id) {
  const auto deadline = Clock::now() + kConversationLimit;
  while (true) {
    const std::string request = session.receive(deadline);
    if (request == "who") {
      session.send(id, deadline);
    } else if (request == "echo") {
      session.send(request, deadline);
    } else if (request.starts_with("take ")) {
      std::size_t bytes = 0;
      const char* first = request.data() + 5;
      const char* last = request.data() + request.size();
      const auto [end, error] = std::from_chars(first, last, bytes);
      if (error != std::errc() || end != last || bytes > kMostProbeBytes) return;
      session.send("go", deadline);
      session.receive_raw(bytes, deadline);
      session.send("took", deadline);
    } else {
      return;
    }
  }
}

}  // namespace

// What conversations use that may outlive the server by the time it takes them to notice.
struct ProbeServer::Shared {
  Options options;
  std::atomic<int> connections = 0;
};

ProbeServer::ProbeServer(const std::vector<InterfaceAddress>& addresses, Options options)
    : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), shared_(std::make_shared<Shared>()) {
  if (!stop_) throw_errno("eventfd");
  shared_->options = std::move(options);
  for (const InterfaceAddress& each : addresses) {
    try {
      UniqueFd socket = listen_on(each.address.to_string(), 0);
      listeners_.push_back({.address = each.address.to_string(),
                            .prefix_bits = each.prefix_bits,
                            .port = port_of(socket)});
      sockets_.push_back(std::move(socket));
    } catch (const Error&) {
      // An IPv6 address that is not settled yet, or one that is gone: others cannot use it either.
    }
  }
  thread_ = std::thread([this] {
    block_signals();
    serve();
  });
}

ProbeServer::~ProbeServer() {
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void ProbeServer::answer(const std::shared_ptr<Shared>& shared, UniqueFd socket) {
  try {
    ProbeSession session(std::move(socket), LinkRole::server,
                         {.secret = shared->options.secret, .tls = shared->options.tls},
                         Clock::now() + kHandshakeLimit);
    converse(session, shared->options.id);
  } catch (const Error&) {
    // The other end knows better what went wrong.
  }
  --shared->connections;
}

void ProbeServer::serve() {
  std::vector<pollfd> waiting;
  for (const UniqueFd& socket : sockets_) waiting.push_back({socket.get(), POLLIN, 0});
  waiting.push_back({stop_.get(), POLLIN, 0});
  while (true) {
    if (::poll(waiting.data(), waiting.size(), -1) < 0) continue;
    if (waiting.back().revents != 0) return;
    for (const pollfd& each : waiting) {
      if (each.revents == 0) continue;
      UniqueFd socket(::accept4(each.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket || shared_->connections >= kMostConnections) continue;
      ++shared_->connections;
      try {
        std::thread(&ProbeServer::answer, shared_, std::move(socket)).detach();
      } catch (const std::system_error&) {
        --shared_->connections;  // no thread: as if all places were taken
      }
    }
  }
}

}  // namespace lockstep
