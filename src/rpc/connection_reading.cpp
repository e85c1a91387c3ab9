#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rpc/connection.h"

/// What a connection does with what it reads, all of it on the loop's thread.
namespace lockstep::rpc {
namespace {

constexpr int kReadsAtATime = 16;  // then others have their turn
constexpr std::size_t kMaxMappedSegments = 65536;
constexpr std::size_t kMaxDescriptors = 16;  // of one read

/// Memory that a peer has lent. It hears when nobody here looks at it any more.
struct Lease {
  std::shared_ptr<MappedMemory> memory;
  std::weak_ptr<Connection> connection;
  std::uint64_t segment = 0;

  ~Lease() {
    memory.reset();
    if (const auto alive = connection.lock()) alive->send(FrameKind::release, segment);
  }
};

}  // namespace

void Connection::on_events(std::uint32_t events) {
  const std::shared_ptr<Connection> self = shared_from_this();
  if (events & EPOLLOUT) {
    const Locked locked(*this);
    flush_locked();
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  try {
    for (int turn = 0; turn < kReadsAtATime && read_some(); ++turn) {
    }
  } catch (const BadMessage& error) {
    close({.kind = FailureKind::bad_message, .detail = {}, .message = error.what()});
  } catch (const std::exception& error) {  // no memory for a message, or for mapping a segment
    close({.kind = FailureKind::bad_message, .detail = {}, .message = error.what()});
  }
}

// False when there is no more to read now.
bool Connection::read_some() {
  bool through_link = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return false;
    through_link = link_.has_value();
  }
  return through_link ? read_link() : read_frames();
}

bool Connection::read_frames() {
  const std::span<std::byte> target = stream_.target();
  iovec part{.iov_base = target.data(), .iov_len = target.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    close({.kind = FailureKind::peer_died,
           .detail = {},
           .message = "its process has ended, or the connection to it"});
    return false;
  }
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(each) + index * sizeof(int), sizeof(int));
      descriptors_.emplace_back(descriptor);
    }
  }
  if (descriptors_.size() > kMaxDescriptors) throw BadMessage("rpc: descriptors without segments");
  stream_.filled(static_cast<std::size_t>(got));
  return static_cast<std::size_t>(got) == target.size() || got >= (64 << 10);
}

bool Connection::read_link() {
  link_buffer_.resize(256 << 10);
  const ssize_t got = recv(socket_.get(), link_buffer_.data(), link_buffer_.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {
    close({.kind = FailureKind::peer_died,
           .detail = {},
           .message = "its process has ended, or the connection to it"});
    return false;
  }
  LinkSession::Result result;
  {
    const Locked locked(*this);
    result = link_->receive({link_buffer_.data(), static_cast<std::size_t>(got)});
    if (!result.send.empty()) outbox_.push_raw(std::move(result.send));
    flush_locked();
  }
  if (result.established) link_established();
  for (const std::string& frame : result.messages) {
    if (frame.size() < kFrameHeaderBytes) throw BadMessage("rpc: a frame without a header");
    std::uint32_t size = 0;
    std::memcpy(&size, frame.data(), sizeof(size));
    if (size != frame.size() - kFrameHeaderBytes) throw BadMessage("rpc: a frame of another size");
    inbox_.frame(static_cast<FrameKind>(frame[sizeof(size)]),
                 std::string_view(frame).substr(kFrameHeaderBytes));
  }
  if (result.closed_because) {
    close({.kind = FailureKind::bad_message, .detail = {}, .message = *result.closed_because});
    return false;
  }
  return true;
}

// Both have proven that they know the secret. The caller speaks first: until then the other sends
// nothing, so that no frame is taken for a part of the handshake.
void Connection::link_established() {
  const Locked locked(*this);
  if (established_) return;
  established_ = true;
  if (options_.link_carries_frames) {
    outbox_.set_seal([this](std::string_view frame) { return link_->seal(frame); });
  } else {
    link_.reset();
  }
  if (options_.calls) push_locked(FrameKind::hello, encode(options_.hello));
  flush_locked();
}

EventLoop::Time Connection::on_time(Time now) {
  const std::shared_ptr<Connection> self = shared_from_this();
  bool greeted = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return Time::max();
    greeted = ready_;
  }
  const Time next = pending_.expire(now);
  if (greeted) return next;
  const Time limit = opened_ + options_.greeting_limit;
  if (now >= limit) {
    close({.kind = FailureKind::peer_died, .detail = {}, .message = "it did not say who it is"});
    return Time::max();
  }
  return std::min(next, limit);
}

void Connection::on_hello(const HelloFrame& hello) {
  if (!options_.expected_name.empty() && hello.name != options_.expected_name) {
    throw BadMessage(
        concat("rpc: '", hello.name, "' answers instead of '", options_.expected_name, "'"));
  }
  pending_.set_limit(hello.max_calls);
  const Locked locked(*this);
  peer_name_ = hello.name;
  if (!options_.calls) {
    push_locked(FrameKind::hello, encode(options_.hello));
    flush_locked();
  }
  ready_ = true;
  changed_.notify_all();
}

bool Connection::wants(const MessageHead& head) {
  if (options_.calls != (head.kind == FrameKind::answer)) {
    throw BadMessage("rpc: calls go one way over a connection, and answers the other");
  }
  return !options_.calls || pending_.contains(head.id);
}

void Connection::on_unwanted(std::uint64_t id) {
  pending_.take(id);  // its place is free again
}

Blob Connection::shared_blob(const BlobPlace& place) {
  const auto found = mapped_.find(place.segment);
  if (found == mapped_.end()) throw BadMessage("rpc: a blob in an unknown segment");
  const std::shared_ptr<MappedMemory>& memory = found->second;
  if (place.offset > memory->bytes() || place.bytes > memory->bytes() - place.offset) {
    throw BadMessage("rpc: a blob is not within its segment");
  }
  auto lease = std::make_shared<Lease>(memory, weak_from_this(), place.segment);
  return {.data = memory->data() + place.offset, .bytes = place.bytes, .owner = std::move(lease)};
}

void Connection::on_message(Received message) {
  if (!options_.calls) return events_.on_call(shared_from_this(), std::move(message));
  // Late answers find nobody.
  if (const auto call = pending_.take(message.head.id)) {
    call->state->finish(std::move(message.payload));
  }
}

void Connection::on_failure(FailureFrame failure) {
  if (!options_.calls) throw BadMessage("rpc: a failure of nothing");
  if (const auto call = pending_.take(failure.id)) {
    fail_call(*call, options_.expected_name, failure.failure);
  }
}

void Connection::on_segment(const SegmentFrame& segment) {
  if (!options_.local || descriptors_.empty()) throw BadMessage("rpc: a segment without memory");
  UniqueFd descriptor = std::move(descriptors_.front());
  descriptors_.pop_front();
  if (mapped_.size() >= kMaxMappedSegments || mapped_.contains(segment.id)) {
    throw BadMessage("rpc: a segment that is known already");
  }
  if (segment.bytes > options_.max_mapped_bytes - mapped_bytes_) {
    throw BadMessage(concat("rpc: segments of more than ", options_.max_mapped_bytes, " bytes"));
  }
  mapped_[segment.id] = map_received(std::move(descriptor), segment.bytes);
  mapped_bytes_ += segment.bytes;
}

void Connection::on_release(std::uint64_t segment) {
  std::shared_ptr<Segment> returned;  // let go of outside the lock
  const std::lock_guard lock(mutex_);
  const auto found = lent_.find(segment);
  if (found == lent_.end()) return;
  returned = std::move(found->second);
  lent_.erase(found);
}

void Connection::on_forget(std::uint64_t segment) {
  const auto found = mapped_.find(segment);
  if (found == mapped_.end()) return;
  mapped_bytes_ -= found->second->bytes();
  mapped_.erase(found);
}

void Connection::on_drop_object(std::uint64_t object) {
  if (options_.calls) throw BadMessage("rpc: objects are dropped by callers");
  events_.on_drop_object(*this, object);
}

void Connection::on_goodbye() {
  close({.kind = FailureKind::shut_down, .detail = {}, .message = "it was shut down"});
}

}  // namespace lockstep::rpc
