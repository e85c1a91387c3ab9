#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/unique_fd.h"

namespace lockstep {

/// A message between two processes of one machine: bytes, and descriptors that are the receiver's.
struct ChannelMessage {
  std::string bytes;
  std::vector<UniqueFd> fds;
};

enum class ChannelResult {
  done,
  would_block,
  closed,  // the other side has ended or closed its end
};

/// One end of a connection between two processes of one machine. Messages stay whole and in order
/// and may have any length. Never blocks. Not thread-safe.
class MessageChannel {
 public:
  explicit MessageChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  /// Two connected ends, neither among the standard descriptors; closed at exec.
  static std::pair<MessageChannel, MessageChannel> pair();

  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

  /// The descriptors, at most kMostDescriptors, are duplicated and stay the caller's. Throws
  /// SystemError when the system is out of memory or descriptors.
  ChannelResult send(const std::string& bytes, std::span<const int> fds);

  /// Fills `message` on ChannelResult::done.
  ChannelResult receive(ChannelMessage& message);

  static constexpr std::size_t kMostDescriptors = 8;

 private:
  UniqueFd socket_;
};

}  // namespace lockstep
