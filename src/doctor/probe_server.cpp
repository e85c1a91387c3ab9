#include "doctor/probe_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <charconv>
#include <functional>
#include <system_error>

#include "doctor/probe_session.h"
#include "launch/listen.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = ProbeSession::Clock;

constexpr std::size_t kMostConnections = 16;
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

ProbeServer::ProbeServer(const std::vector<InterfaceAddress>& addresses, Options options)
    : options_(std::move(options)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) throw_errno("eventfd");
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
  for (const Conversation& each : conversations_) ::shutdown(each.socket.get(), SHUT_RDWR);
  for (Conversation& each : conversations_) each.thread.join();
}

void ProbeServer::answer(Conversation& conversation, UniqueFd socket) const {
  try {
    ProbeSession session(std::move(socket), LinkRole::server,
                         {.secret = options_.secret, .tls = options_.tls},
                         Clock::now() + kHandshakeLimit);
    converse(session, options_.id);
  } catch (const Error&) {
    // The other end knows better what went wrong.
  }
  ::shutdown(conversation.socket.get(), SHUT_RDWR);  // the other end waits for no more
  conversation.is_over = true;
}

void ProbeServer::begin(UniqueFd socket) {
  std::erase_if(conversations_, [](Conversation& each) {
    if (!each.is_over) return false;
    each.thread.join();
    return true;
  });
  UniqueFd own(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!own || conversations_.size() >= kMostConnections) return;
  Conversation& conversation = conversations_.emplace_back();
  conversation.socket = std::move(socket);
  try {
    conversation.thread =
        std::thread(&ProbeServer::answer, this, std::ref(conversation), std::move(own));
  } catch (const std::system_error&) {
    conversations_.pop_back();  // no thread: as if all places were taken
  }
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
      if (socket) begin(std::move(socket));
    }
  }
}

}  // namespace lockstep
