#include "rpc/outbox.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace lockstep::rpc {

void Outbox::add(Frame frame) {
  if (seal_) {
    frame.bytes.append(reinterpret_cast<const char*>(frame.blob.data), frame.blob.bytes);
    frame.bytes = seal_(frame.bytes);
    spend(frame.blob);
  }
  bytes_ += frame.size();
  ready_.push_back(std::move(frame));
}

void Outbox::spend(Blob& blob) {
  if (blob.owner) spent_.push_back(std::move(blob.owner));
  blob = {};
}

void Outbox::push(FrameKind kind, std::string_view content, std::shared_ptr<Segment> segment) {
  add({.bytes = frame_header(kind, content.size()).append(content),
       .blob = {},
       .segment = std::move(segment),
       .ends_answer = kind == FrameKind::failure});
}

void Outbox::push_raw(std::string bytes) {
  bytes_ += bytes.size();
  ready_.push_back({.bytes = std::move(bytes), .blob = {}, .segment = nullptr});
}

void Outbox::push_message(const MessageHead& head, Payload payload) {
  std::string content = encode(head);
  const std::uint64_t following = head.following_bytes();
  const bool answer = head.kind == FrameKind::answer;
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
    return add({.bytes = std::move(frame), .blob = {}, .segment = nullptr, .ends_answer = answer});
  }
  push(head.kind, content);
  Stream stream{.id = head.id, .answer = answer, .blobs = {}};
  if (!payload.bytes.empty()) {
    auto kept = std::make_shared<std::string>(std::move(payload.bytes));
    auto* data = reinterpret_cast<std::byte*>(kept->data());
    stream.blobs.push_back({.data = data, .bytes = kept->size(), .owner = kept});
  }
  for (std::size_t index = 0; index < payload.blobs.size(); ++index) {
    if (head.blobs[index].segment != 0) continue;
    if (payload.blobs[index].bytes == 0) {
      spend(payload.blobs[index]);  // an empty one may have an owner, too
    } else {
      stream.blobs.push_back(std::move(payload.blobs[index]));
    }
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
  add({.bytes = frame_header(FrameKind::piece, number.size() + piece.bytes) + number,
       .blob = std::move(piece),
       .segment = nullptr,
       .ends_answer = stream.answer && stream.blobs.empty()});
  if (!stream.blobs.empty()) streams_.push_back(std::move(stream));
}

std::vector<iovec> Outbox::next(std::size_t limit, int* descriptor) {
  *descriptor = -1;
  if (ready_.empty() && !streams_.empty()) cut_piece();
  std::vector<iovec> result;
  std::size_t skip = sent_;
  for (const Frame& frame : ready_) {
    if (frame.segment && skip == 0) {
      if (!result.empty()) break;
      *descriptor = frame.segment->descriptor.get();
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
    Frame& front = ready_.front();
    sent_ -= front.size();
    if (front.ends_answer) ++answers_written_;
    spend(front.blob);
    if (front.segment) spent_.push_back(std::move(front.segment));
    ready_.pop_front();
  }
}

}  // namespace lockstep::rpc
