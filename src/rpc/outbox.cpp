#include "rpc/outbox.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::rpc {

void Outbox::add(std::string bytes, Blob blob, int descriptor) {
  if (seal_) {
    bytes.append(reinterpret_cast<const char*>(blob.data), blob.bytes);
    bytes = seal_(bytes);
    spend(blob);
  }
  ready_.push_back({.bytes = std::move(bytes), .blob = std::move(blob), .descriptor = descriptor});
  bytes_ += ready_.back().size();
}

void Outbox::spend(Blob& blob) {
  if (blob.owner) spent_.push_back(std::move(blob.owner));
  blob = {};
}

void Outbox::push(FrameKind kind, std::string_view content, int descriptor) {
  add(frame_header(kind, content.size()).append(content), {}, descriptor);
}

void Outbox::push_raw(std::string bytes) {
  bytes_ += bytes.size();
  ready_.push_back({.bytes = std::move(bytes), .blob = {}, .descriptor = -1});
}

void Outbox::push_message(const MessageHead& head, Payload payload) {
  std::string content = encode(head);
  const std::uint64_t following = head.following_bytes();
  if (following <= kInlineBytes) {
    std::string frame = frame_header(head.kind, content.size() + following);
    frame.reserve(frame.size() + content.size() + following);
    frame.append(content).append(payload.bytes);
    for (std::size_t index = 0; index < payload.blobs.size(); ++index) {
      if (head.blobs[index].segment != 0) continue;
      Blob& blob = payload.blobs[index];
      if (blob.bytes > 0) frame.append(reinterpret_cast<const char*>(blob.data), blob.bytes);
      spend(blob);
    }
    return add(std::move(frame), {}, -1);
  }
  push(head.kind, content);
  Stream stream{.id = head.id, .blobs = {}};
  if (!payload.bytes.empty()) {
    auto kept = std::make_shared<std::string>(std::move(payload.bytes));
    auto* data = reinterpret_cast<std::byte*>(kept->data());
    stream.blobs.push_back({.data = data, .bytes = kept->size(), .owner = kept});
  }
  for (std::size_t index = 0; index < payload.blobs.size(); ++index) {
    if (head.blobs[index].segment != 0 || payload.blobs[index].bytes == 0) continue;
    stream.blobs.push_back(std::move(payload.blobs[index]));
  }
  bytes_ += following;
  streams_.push_back(std::move(stream));
}

void Outbox::cut_piece() {
  Stream stream = std::move(streams_.front());
  streams_.pop_front();
  Blob& front = stream.blobs.front();
  Blob piece = front;
  piece.bytes = std::min(front.bytes, kPieceBytes);
  front.data += piece.bytes;
  front.bytes -= piece.bytes;
  if (front.bytes == 0) {
    spend(front);
    stream.blobs.pop_front();
  }
  bytes_ -= piece.bytes;  // add() counts it again
  const std::string number = encode_number(stream.id);
  add(frame_header(FrameKind::piece, number.size() + piece.bytes) + number, std::move(piece), -1);
  if (!stream.blobs.empty()) streams_.push_back(std::move(stream));
}

std::vector<iovec> Outbox::next(std::size_t limit, int* descriptor) {
  *descriptor = -1;
  if (ready_.empty() && !streams_.empty()) cut_piece();
  std::vector<iovec> result;
  std::size_t skip = sent_;
  for (const Frame& frame : ready_) {
    if (frame.descriptor >= 0 && skip == 0) {
      if (!result.empty()) break;
      *descriptor = frame.descriptor;
    }
    if (result.size() + 2 > limit) break;
    const auto add_part = [&](const void* data, std::size_t bytes) {
      const std::size_t passed = std::min(skip, bytes);
      skip -= passed;
      if (passed == bytes) return;
      result.push_back({.iov_base = const_cast<char*>(static_cast<const char*>(data)) + passed,
                        .iov_len = bytes - passed});
    };
    add_part(frame.bytes.data(), frame.bytes.size());
    add_part(frame.blob.data, frame.blob.bytes);
  }
  return result;
}

void Outbox::written(std::size_t bytes) {
  bytes_ -= bytes;
  sent_ += bytes;
  while (!ready_.empty() && sent_ >= ready_.front().size()) {
    sent_ -= ready_.front().size();
    spend(ready_.front().blob);
    ready_.pop_front();
  }
}

}  // namespace lockstep::rpc
