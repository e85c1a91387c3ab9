#include "comm/socket_handles.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

void for_each_socket(const std::function<void(int descriptor, unsigned long inode)>& visit) {
  std::error_code error;  // a descriptor may vanish while the folder is read
  for (const auto& entry : fs::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    struct stat status {};
    if (fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode)) {
      visit(descriptor, status.st_ino);
    }
  }
}

using AddressCall = int (*)(int, sockaddr*, socklen_t*);

// The port at one end of a TCP connection; empty for other sockets.
std::optional<int> port_of(int descriptor, AddressCall call) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (call(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return std::nullopt;
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return std::nullopt;
}

}  // namespace

SocketHandles::Snapshot SocketHandles::Snapshot::take() {
  Snapshot snapshot;
  for_each_socket([&](int, unsigned long inode) { snapshot.inodes_.insert(inode); });
  return snapshot;
}

SocketHandles SocketHandles::opened_since(const Snapshot& before, int excluded_port) {
  std::vector<int> found;
  for_each_socket([&](int descriptor, unsigned long inode) {
    const auto local = port_of(descriptor, getsockname);
    const auto remote = port_of(descriptor, getpeername);  // absent for listeners
    if (before.inodes_.contains(inode) || !local || !remote) return;
    if (*local == excluded_port || *remote == excluded_port) return;
    found.push_back(descriptor);
  });

  SocketHandles handles;
  for (int descriptor : found) {
    const int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy >= 0) handles.descriptors_.push_back(copy);
  }
  return handles;
}

// Reading first: Gloo's loop sees the end of the connection and fails what waits for it. A send
// that begins before it has seen that must still succeed, because Gloo forgets one whose write
// fails, and its waiter with it.
void SocketHandles::shut_down() const {
  constexpr std::chrono::milliseconds kUntilSeen{10};
  for (int descriptor : descriptors_) shutdown(descriptor, SHUT_RD);
  if (!descriptors_.empty()) std::this_thread::sleep_for(kUntilSeen);
  end();
}

void SocketHandles::end() const {
  for (int descriptor : descriptors_) shutdown(descriptor, SHUT_RDWR);
}

SocketHandles& SocketHandles::operator=(SocketHandles&& other) noexcept {
  std::swap(descriptors_, other.descriptors_);
  return *this;
}

SocketHandles::~SocketHandles() {
  for (int descriptor : descriptors_) close(descriptor);
}

}  // namespace lockstep
