#include "rpc/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep::rpc {
namespace {

constexpr std::size_t kSharedFrom = 16 << 10;  // smaller blobs travel with the message
constexpr std::size_t kMaxQueuedBytes = 64 << 20;
constexpr std::size_t kPartsPerWrite = 64;
constexpr std::size_t kBlobAlignment = 64;  // tensors expect it, for vectors

Failure died(const std::string& why) {
  return {.kind = FailureKind::peer_died, .detail = {}, .message = why};
}

}  // namespace

std::shared_ptr<Connection> Connection::open(UniqueFd socket, Options options, Events events,
                                             std::shared_ptr<EventLoop> loop) {
  std::shared_ptr<Connection> result(
      new Connection(std::move(socket), std::move(options), std::move(events), std::move(loop)));
  result->start();
  return result;
}

Connection::Connection(UniqueFd socket, Options options, Events events,
                       std::shared_ptr<EventLoop> loop)
    : options_(std::move(options)),
      events_(std::move(events)),
      loop_(std::move(loop)),
      socket_(std::move(socket)),
      inbox_(options_.limits, *this),
      stream_(inbox_) {
  pending_.set_peer(options_.expected_name);
}

Connection::~Connection() = default;

void Connection::start() {
  {
    const Locked locked(*this);
    if (options_.link) {
      link_.emplace(*options_.link);
      if (std::string first = link_->start(); !first.empty()) outbox_.push_raw(std::move(first));
    } else {
      established_ = true;
      if (options_.calls) push_locked(FrameKind::hello, encode(options_.hello));
    }
    number_ = loop_->add(socket_.get(), EPOLLIN, shared_from_this());
    flush_locked();
  }
  loop_->wake_by(opened_ + options_.greeting_limit);
}

bool Connection::wait_ready(Time deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [this] { return ready_ || closed_; });
  return ready_ && !closed_;
}

bool Connection::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

bool Connection::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_;
}

Failure Connection::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_.value_or(died("it does not answer"));
}

std::string Connection::peer_name() const {
  const std::lock_guard lock(mutex_);
  return peer_name_;
}

void Connection::call(PendingCall call, MessageHead head, Payload payload) {
  const Time deadline = call.deadline;
  const auto number = pending_.add(std::move(call));
  if (!number) return;
  loop_->wake_by(deadline);
  head.kind = FrameKind::call;
  head.id = *number;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  head.timeout_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 1, 1u << 31));
  // Where the connection has ended, closing it fails the call; otherwise there was no room in time.
  const bool sent = send_message(std::move(head), std::move(payload), deadline);
  if (!sent && !closed()) pending_.abandon(*number);
}

void Connection::answer(std::uint64_t id, Payload payload) {
  MessageHead head;
  head.kind = FrameKind::answer;
  head.id = id;
  send_message(std::move(head), std::move(payload), Time::max());
}

void Connection::answer(std::uint64_t id, const Failure& failure) {
  const Locked locked(*this);
  push_locked(FrameKind::failure, encode(FailureFrame{.id = id, .failure = failure}));
  flush_locked();
}

void Connection::send(FrameKind kind, std::uint64_t number) {
  const Locked locked(*this);
  push_locked(kind, encode_number(number));
  flush_locked();
}

void Connection::forget_segment(std::uint64_t segment) {
  const Locked locked(*this);
  if (announced_.erase(segment) == 0) return;
  push_locked(FrameKind::forget, encode_number(segment));
  flush_locked();
}

// Copies large blobs into memory that the peer can map, unless they are there already. All of them
// share one segment, because each segment is a descriptor. It is in the result once for each blob:
// so often does the peer release it.
std::vector<std::shared_ptr<Segment>> Connection::place_blobs(MessageHead& head, Payload& payload) {
  std::vector<std::shared_ptr<Segment>> segments;
  std::vector<std::size_t> to_copy;
  std::size_t bytes_to_copy = 0;
  for (Blob& blob : payload.blobs) {
    BlobPlace place{.bytes = blob.bytes, .segment = 0, .offset = 0};
    if (options_.local && options_.pool && blob.bytes >= kSharedFrom) {
      if (auto found = options_.pool->find(blob.data, blob.bytes)) {
        place.segment = found->segment->id;
        place.offset = found->offset;
        segments.push_back(std::move(found->segment));
        blob = {};
      } else {
        place.offset = bytes_to_copy;
        to_copy.push_back(head.blobs.size());
        bytes_to_copy += (blob.bytes + kBlobAlignment - 1) / kBlobAlignment * kBlobAlignment;
      }
    }
    head.blobs.push_back(place);
  }
  const auto segment = to_copy.empty() ? nullptr : options_.pool->take(bytes_to_copy);
  for (const std::size_t index : to_copy) {
    BlobPlace& place = head.blobs[index];
    if (!segment) {  // they travel with the message
      place.offset = 0;
      continue;
    }
    Blob& blob = payload.blobs[index];
    std::memcpy(segment->data() + place.offset, blob.data, blob.bytes);
    place.segment = segment->id;
    segments.push_back(segment);
    blob = {};
  }
  return segments;
}

bool Connection::send_message(MessageHead head, Payload payload, Time deadline) {
  head.payload_bytes = payload.bytes.size();
  std::vector<std::shared_ptr<Segment>> segments = place_blobs(head, payload);
  Locked locked(*this);
  if (options_.calls) {
    changed_.wait_until(locked.lock(), deadline,
                        [this] { return closed_ || outbox_.bytes() < kMaxQueuedBytes; });
    if (std::chrono::steady_clock::now() >= deadline) return false;
  }
  if (closed_) return false;
  for (std::shared_ptr<Segment>& segment : segments) {
    if (announced_.insert(segment->id).second) {
      push_locked(FrameKind::segment,
                  encode(SegmentFrame{.id = segment->id, .bytes = segment->bytes()}), segment);
    }
    const std::uint64_t id = segment->id;
    lent_.emplace(id, std::move(segment));
  }
  outbox_.push_message(head, std::move(payload));
  flush_locked();
  return true;
}

void Connection::push_locked(FrameKind kind, std::string_view content,
                             std::shared_ptr<Segment> segment) {
  if (!closed_) outbox_.push(kind, content, std::move(segment));
}

bool Connection::begin_call(int limit) {
  if (++open_calls_ <= limit) return true;
  // The peer may have an answer that the thread which sends it has not counted yet.
  const std::lock_guard lock(mutex_);
  return open_calls_ <= limit;
}

std::size_t Connection::queued_bytes() const {
  const std::lock_guard lock(mutex_);
  return outbox_.bytes();
}

void Connection::flush_locked() {
  if (closed_) return;
  bool blocked = false;
  while (!blocked) {
    if (outbox_.empty() && std::exchange(goodbye_waits_, false)) {
      push_locked(FrameKind::goodbye, {});
    }
    if (outbox_.empty()) break;
    int descriptor = -1;
    std::vector<iovec> parts = outbox_.next(kPartsPerWrite, &descriptor);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof(int));
    }
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      outbox_.written(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      blocked = true;
    } else if (errno != EINTR) {
      // The loop finds out what happened. What came before is still to be read.
      shutdown(socket_.get(), SHUT_WR);
      while (!outbox_.empty()) {
        std::size_t bytes = 0;
        for (const iovec& part : outbox_.next(kPartsPerWrite, &descriptor)) bytes += part.iov_len;
        outbox_.written(bytes);
      }
    }
  }
  open_calls_ -= outbox_.take_answers_written();
  if (blocked != wants_to_write_) {
    wants_to_write_ = blocked;
    loop_->change(number_, socket_.get(), blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  if (outbox_.bytes() < kMaxQueuedBytes) changed_.notify_all();
}

void Connection::say_goodbye() {
  pending_.fail_all(
      {.kind = FailureKind::shut_down, .detail = {}, .message = "this agent was shut down"});
  const Locked locked(*this);
  if (established_ && options_.calls) {
    push_locked(FrameKind::goodbye, {});  // at once: nobody waits for calls that are on their way
  } else {
    goodbye_waits_ = established_;
  }
  flush_locked();
}

void Connection::end(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (!failure_) failure_ = failure;
  shutdown(socket_.get(), SHUT_RDWR);  // the loop closes it
}

void Connection::close(const Failure& failure) {
  std::multimap<std::uint64_t, std::shared_ptr<Segment>> lent;
  Failure reason = failure;
  Outbox unsent;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    if (failure_) reason = *failure_;  // the first
    failure_ = reason;
    lent.swap(lent_);
    std::swap(unsent, outbox_);
    changed_.notify_all();
  }
  loop_->remove(number_, socket_.get());
  socket_.reset();
  for (const auto& [id, segment] : lent) options_.pool->retire(segment);
  mapped_.clear();
  pending_.fail_all(reason);
  events_.on_closed(*this);
}

}  // namespace lockstep::rpc
