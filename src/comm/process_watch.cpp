#include "comm/process_watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep {

ProcessWatch::ProcessWatch(const std::vector<PeerIdentity>& processes) {
  for (const auto& process : processes) {
    UniqueFd descriptor(static_cast<int>(syscall(SYS_pidfd_open, process.process_id, 0)));
    if (descriptor.get() < 0) {
      throw Error(
          concat("watching process ", process.process_id, " (pidfd_open): ", std::strerror(errno)));
    }
    // Asked after opening: a later process that got the same number is found out.
    if (process.has_ended().value_or(true)) {
      throw Error(concat("process ", process.process_id, " has ended"));
    }
    descriptors_.push_back(std::move(descriptor));
  }
}

bool ProcessWatch::any_ended() const {
  std::vector<pollfd> polled;
  polled.reserve(descriptors_.size());
  for (const auto& descriptor : descriptors_) {
    polled.push_back({.fd = descriptor.get(), .events = POLLIN, .revents = 0});
  }
  return poll(polled.data(), polled.size(), 0) > 0;
}

bool ProcessWatch::has_ended(std::size_t index) const {
  pollfd polled{.fd = descriptors_[index].get(), .events = POLLIN, .revents = 0};
  return poll(&polled, 1, 0) > 0;
}

}  // namespace lockstep
