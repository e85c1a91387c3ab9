#include "rpc/inbox.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace lockstep::rpc {
namespace {

constexpr std::size_t kMaxPartialMessages = 65536;

Blob owned_memory(std::size_t bytes) {
  if (bytes == 0) return {};
  // Tensors expect it aligned for vectors. It is not zeroed: pages come as bytes do.
  constexpr std::align_val_t kAlignment{64};
  void* memory = ::operator new(bytes, kAlignment);
  std::shared_ptr<void> owner(memory, [](void* each) { ::operator delete(each, kAlignment); });
  return {.data = static_cast<std::byte*>(memory), .bytes = bytes, .owner = std::move(owner)};
}

}  // namespace

void Inbox::frame(FrameKind kind, std::string_view content) {
  if (!greeted_ && kind != FrameKind::hello) throw BadMessage("rpc: the peer did not say hello");
  switch (kind) {
    case FrameKind::hello:
      if (greeted_) throw BadMessage("rpc: a second hello");
      greeted_ = true;
      return listener_.on_hello(decode_hello(content));
    case FrameKind::call:
    case FrameKind::answer:
      return start_message(kind, content);
    case FrameKind::failure:
      return listener_.on_failure(decode_failure(content));
    case FrameKind::piece: {
      if (content.size() < sizeof(std::uint64_t)) throw BadMessage("rpc: a piece of nothing");
      const std::uint64_t id = decode_number(content.substr(0, sizeof(std::uint64_t)));
      return take_bytes(id, content.substr(sizeof(std::uint64_t)));
    }
    case FrameKind::segment:
      return listener_.on_segment(decode_segment(content));
    case FrameKind::release:
      return listener_.on_release(decode_number(content));
    case FrameKind::forget:
      return listener_.on_forget(decode_number(content));
    case FrameKind::drop_object:
      return listener_.on_drop_object(decode_number(content));
    case FrameKind::goodbye:
      return listener_.on_goodbye();
  }
  throw BadMessage("rpc: a frame of an unknown kind");
}

void Inbox::start_message(FrameKind kind, std::string_view content) {
  Partial partial;
  MessageHead& head = partial.message.head;
  head = decode_head(kind, content);
  const std::uint64_t following = head.following_bytes();
  if (following > limits_.message_bytes) {
    throw BadMessage(concat("rpc: a message of ", following, " bytes; at most ",
                            limits_.message_bytes, " are allowed (max_message_bytes)"));
  }
  if (following > limits_.partial_bytes - partial_bytes_) {
    throw BadMessage(concat("rpc: more than ", limits_.partial_bytes, " bytes are under way"));
  }
  if (content.size() > following) throw BadMessage("rpc: more bytes than the message has");
  partial.wanted = listener_.wants(head);
  partial.missing = following;

  Payload& payload = partial.message.payload;
  if (partial.wanted) {
    payload.bytes.resize(head.payload_bytes);
    if (head.payload_bytes > 0) {
      partial.targets.push_back(std::as_writable_bytes(std::span(payload.bytes)));
    }
    for (const BlobPlace& place : head.blobs) {
      payload.blobs.push_back(place.segment == 0 ? owned_memory(place.bytes)
                                                 : listener_.shared_blob(place));
      const Blob& blob = payload.blobs.back();
      if (place.segment == 0 && place.bytes > 0)
        partial.targets.emplace_back(blob.data, blob.bytes);
    }
  } else {
    // Whoever lent memory gets it back, though nobody has looked at it.
    for (const BlobPlace& place : head.blobs) {
      if (place.segment != 0) listener_.shared_blob(place);
    }
  }
  if (following == 0) {
    if (!partial.wanted) return listener_.on_unwanted(head.id);
    return listener_.on_message(std::move(partial.message));
  }
  const std::uint64_t id = head.id;
  if (partial_.size() >= kMaxPartialMessages || partial_.contains(id)) {
    throw BadMessage("rpc: two messages with one number");
  }
  // A short string keeps its bytes in itself: what points there is made where it stays.
  const bool has_payload = partial.wanted && head.payload_bytes > 0;
  Partial& kept = partial_.emplace(id, std::move(partial)).first->second;
  if (has_payload) {
    kept.targets.front() = std::as_writable_bytes(std::span(kept.message.payload.bytes));
  }
  partial_bytes_ += following;
  take_bytes(id, content);
}

Inbox::Partial& Inbox::find(std::uint64_t id) {
  const auto found = partial_.find(id);
  if (found == partial_.end()) throw BadMessage("rpc: a piece of no message");
  return found->second;
}

std::span<std::byte> Inbox::piece_target(std::uint64_t id, std::size_t bytes) {
  Partial& partial = find(id);
  if (bytes > partial.missing) throw BadMessage("rpc: more bytes than the message has");
  if (!partial.wanted) {
    waste_.resize(std::min(kInlineBytes, std::max(waste_.size(), bytes)));
    return std::span(waste_).first(std::min(waste_.size(), bytes));
  }
  const std::span<std::byte> target = partial.targets[partial.target];
  return target.first(std::min(target.size(), bytes));
}

void Inbox::piece_filled(std::uint64_t id, std::size_t bytes) {
  Partial& partial = find(id);
  partial.missing -= bytes;
  partial_bytes_ -= bytes;
  if (partial.wanted) {
    std::span<std::byte>& target = partial.targets[partial.target];
    target = target.subspan(bytes);
    if (target.empty()) ++partial.target;
  }
  if (partial.missing > 0) return;
  const bool wanted = partial.wanted;
  Received message = std::move(partial.message);
  partial_.erase(id);
  if (!wanted) return listener_.on_unwanted(id);
  listener_.on_message(std::move(message));
}

void Inbox::take_bytes(std::uint64_t id, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::span<std::byte> target = piece_target(id, bytes.size());
    std::memcpy(target.data(), bytes.data(), target.size());
    bytes.remove_prefix(target.size());
    piece_filled(id, target.size());
  }
}

std::span<std::byte> FrameStream::target() {
  if (piece_left_ > 0 && begin_ == end_) {
    direct_ = true;
    return inbox_.piece_target(piece_id_, piece_left_);
  }
  direct_ = false;
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size()) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    // A frame that is larger than the buffer: its length is known to be allowed.
    if (end_ == buffer_.size()) buffer_.resize(kMaxContentBytes + kFrameHeaderBytes);
  }
  return std::span(buffer_).subspan(end_);
}

void FrameStream::filled(std::size_t bytes) {
  if (direct_) {
    piece_left_ -= bytes;
    inbox_.piece_filled(piece_id_, bytes);
    return;
  }
  end_ += bytes;
  while (parse_one()) {
  }
}

bool FrameStream::parse_one() {
  const std::size_t there = end_ - begin_;
  const std::byte* front = buffer_.data() + begin_;
  if (piece_left_ > 0) {
    if (there == 0) return false;
    const std::span<std::byte> target =
        inbox_.piece_target(piece_id_, std::min(there, piece_left_));
    std::memcpy(target.data(), front, target.size());
    begin_ += target.size();
    piece_left_ -= target.size();
    inbox_.piece_filled(piece_id_, target.size());
    return true;
  }
  if (there < kFrameHeaderBytes) return false;
  std::uint32_t size = 0;
  std::memcpy(&size, front, sizeof(size));
  const auto kind = static_cast<FrameKind>(front[sizeof(size)]);
  if (size > kMaxContentBytes) throw BadMessage(concat("rpc: a frame of ", size, " bytes"));
  constexpr std::size_t kPieceFront = kFrameHeaderBytes + sizeof(piece_id_);
  if (kind == FrameKind::piece && size > sizeof(piece_id_)) {
    if (there < kPieceFront) return false;
    std::memcpy(&piece_id_, front + kFrameHeaderBytes, sizeof(piece_id_));
    piece_left_ = size - sizeof(piece_id_);
    begin_ += kPieceFront;
    inbox_.piece_target(piece_id_, piece_left_);  // throws if there is no such message
    return true;
  }
  if (there < kFrameHeaderBytes + size) return false;
  const std::string_view content(reinterpret_cast<const char*>(front) + kFrameHeaderBytes, size);
  begin_ += kFrameHeaderBytes + size;
  inbox_.frame(kind, content);
  return true;
}

}  // namespace lockstep::rpc
