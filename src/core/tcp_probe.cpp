#include "core/tcp_probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <thread>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// Empty, with the reason in `code`, if the name is not known.
AddressList resolve(const std::string& host, int port, int& code) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return AddressList(code == 0 ? found : nullptr, [](addrinfo* list) {
    if (list) freeaddrinfo(list);
  });
}

bool accepts(const addrinfo& address, milliseconds timeout) {
  const UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return false;
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, static_cast<int>(timeout.count())) <= 0) return false;
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

bool wait_for_listener(const std::string& host, int port, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  auto pause = milliseconds(2);
  while (true) {
    int code = 0;
    const AddressList addresses = resolve(host, port, code);
    for (const addrinfo* each = addresses.get(); each; each = each->ai_next) {
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      if (accepts(*each, std::max(left, milliseconds(1)))) return true;
    }
    if (Clock::now() >= deadline) {
      if (code == 0) return false;
      throw InvalidArgument(concat("host '", host, "' cannot be resolved: ", gai_strerror(code),
                                   "; give an address, or a name that this machine knows"));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(100));
  }
}

}  // namespace lockstep
