#include "launch/stream_bundle.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Each word about bytes taken costs a message, so there is one for many of them.
constexpr std::size_t kTellAfterBytes = StreamBundle::kWindowBytes / 4;

}  // namespace

StreamBundle::StreamBundle(EventLoop& loop, Callbacks callbacks)
    : loop_(loop), callbacks_(std::move(callbacks)) {}

StreamBundle::~StreamBundle() {
  close_all(/*tell=*/false);
}

void StreamBundle::add(UniqueFd socket, std::uint64_t epoch) {
  const std::uint64_t id = ++last_id_;
  send(StreamMessage::Kind::open, id, epoch);
  adopt(id, std::move(socket));
}

void StreamBundle::adopt(std::uint64_t id, UniqueFd socket) {
  auto& stream = streams_[id] = std::make_unique<Stream>();
  stream->socket = std::move(socket);
  watch(id, *stream);
}

void StreamBundle::on_message(std::string_view text) {
  const StreamMessage message = decode_stream_message(text);
  if (message.kind == StreamMessage::Kind::open) return on_open(message);
  const auto found = streams_.find(message.stream);
  if (found == streams_.end()) return;  // it was closed here while this was on its way
  Stream& stream = *found->second;
  switch (message.kind) {
    case StreamMessage::Kind::data:
      return on_data(stream, message);
    case StreamMessage::Kind::end:
      stream.heard_all = true;
      if (stream.to_socket.empty()) ::shutdown(stream.socket.get(), SHUT_WR);
      return settle(message.stream, stream, true);
    case StreamMessage::Kind::taken:
      if (message.number > kWindowBytes - stream.may_send) {
        throw InvalidArgument("a stream's other end took more bytes than it was sent");
      }
      stream.may_send += message.number;
      return watch(message.stream, stream);
    default:
      return remove(found);
  }
}

void StreamBundle::on_open(const StreamMessage& message) {
  if (!callbacks_.connect) throw InvalidArgument("a stream was opened where none can be");
  // The other end counts.
  if (message.stream <= last_id_) throw InvalidArgument("a stream was opened twice");
  last_id_ = message.stream;
  UniqueFd socket;
  if (streams_.size() < kMaxStreams) socket = callbacks_.connect(message.number);
  if (!socket) return send(StreamMessage::Kind::reset, message.stream);
  adopt(message.stream, std::move(socket));
}

void StreamBundle::on_data(Stream& stream, const StreamMessage& message) {
  const std::size_t held = stream.to_socket.size() - stream.written + stream.untold;
  if (stream.heard_all || held + message.bytes.size() > kWindowBytes) {
    throw InvalidArgument("a stream's other end sent more bytes than it may");
  }
  stream.to_socket.append(message.bytes);
  settle(message.stream, stream, write(message.stream, stream));
}

void StreamBundle::on_ready(std::uint64_t id, std::uint32_t events) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  Stream& stream = *found->second;
  bool intact = true;
  if (!stream.to_socket.empty()) intact = write(id, stream);
  if (intact && (events & (EPOLLIN | EPOLLHUP | EPOLLERR))) intact = read(id, stream);
  settle(id, stream, intact);
}

bool StreamBundle::may_read(const Stream& stream) const {
  return !stream.read_all && stream.may_send > 0 && callbacks_.queued_bytes() < kLinkBytes;
}

bool StreamBundle::read(std::uint64_t id, Stream& stream) {
  if (!may_read(stream)) return true;
  std::array<char, kStreamMessageBytes> buffer;
  const ssize_t count =
      ::recv(stream.socket.get(), buffer.data(), std::min(buffer.size(), stream.may_send), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) {
    stream.read_all = true;
    send(StreamMessage::Kind::end, id);
    return true;
  }
  stream.may_send -= static_cast<std::size_t>(count);
  send(StreamMessage::Kind::data, id, 0, {buffer.data(), static_cast<std::size_t>(count)});
  return true;
}

bool StreamBundle::write(std::uint64_t id, Stream& stream) {
  while (stream.written < stream.to_socket.size()) {
    const ssize_t count = ::send(stream.socket.get(), stream.to_socket.data() + stream.written,
                                 stream.to_socket.size() - stream.written, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) return false;
    if (count < 0) break;
    stream.written += static_cast<std::size_t>(count);
    stream.untold += static_cast<std::size_t>(count);
  }
  if (stream.untold >= kTellAfterBytes) {
    send(StreamMessage::Kind::taken, id, std::exchange(stream.untold, 0));
  }
  if (stream.written < stream.to_socket.size()) {
    // Else what a slow reader has taken would pile up.
    if (stream.written >= kWindowBytes) stream.to_socket.erase(0, std::exchange(stream.written, 0));
    return true;
  }
  stream.written = 0;
  stream.to_socket.clear();
  stream.to_socket.shrink_to_fit();  // most streams are quiet most of the time
  if (stream.heard_all) ::shutdown(stream.socket.get(), SHUT_WR);
  return true;
}

void StreamBundle::settle(std::uint64_t id, Stream& stream, bool intact) {
  const bool over = stream.read_all && stream.heard_all && stream.to_socket.empty();
  if (intact && !over) return watch(id, stream);
  if (!intact) send(StreamMessage::Kind::reset, id);
  remove(streams_.find(id));
}

// A socket of which nothing is wanted leaves the loop: its hang-up would be reported for ever.
void StreamBundle::watch(std::uint64_t id, Stream& stream) {
  const std::uint32_t wanted =
      (may_read(stream) ? EPOLLIN : 0u) | (stream.to_socket.empty() ? 0u : EPOLLOUT);
  const std::uint32_t before = std::exchange(stream.watched, wanted);
  if (wanted == before) return;
  const int fd = stream.socket.get();
  if (before == 0) {
    loop_.watch(fd, wanted, [this, id](std::uint32_t events) { on_ready(id, events); });
  } else if (wanted == 0) {
    loop_.unwatch(fd);
  } else {
    loop_.change(fd, wanted);
  }
}

void StreamBundle::on_drained() {
  for (const auto& [id, stream] : streams_) watch(id, *stream);
}

void StreamBundle::remove(Streams::iterator stream) {
  if (stream->second->watched != 0) loop_.unwatch(stream->second->socket.get());
  streams_.erase(stream);
}

void StreamBundle::close_all(bool tell) {
  while (!streams_.empty()) {
    if (tell) send(StreamMessage::Kind::reset, streams_.begin()->first);
    remove(streams_.begin());
  }
}

void StreamBundle::send(StreamMessage::Kind kind, std::uint64_t id, std::uint64_t number,
                        std::string_view bytes) {
  callbacks_.send(encode({.kind = kind, .stream = id, .number = number, .bytes = bytes}));
}

}  // namespace lockstep
