#include "control/frame.h"

#include <algorithm>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kHeaderBytes = 4;

}  // namespace

std::string encode_frame(std::string_view payload) {
  if (payload.size() > kMaxFrameBytes) {
    throw InvalidArgument(concat("a message of ", payload.size(),
                                 " bytes does not fit into a frame of at most ", kMaxFrameBytes));
  }
  std::string frame;
  frame.reserve(kHeaderBytes + payload.size());
  for (std::size_t byte = 0; byte < kHeaderBytes; ++byte) {
    frame.push_back(static_cast<char>((payload.size() >> (8 * byte)) & 0xff));
  }
  return frame.append(payload);
}

void FrameDecoder::take_header(std::string_view& bytes) {
  while (header_bytes_ < kHeaderBytes && !bytes.empty()) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    length_ |= static_cast<std::uint32_t>(byte) << (8 * header_bytes_);
    ++header_bytes_;
    bytes.remove_prefix(1);
  }
}

std::optional<std::string> FrameDecoder::next(std::string_view& bytes) {
  if (header_bytes_ < kHeaderBytes) {
    take_header(bytes);
    if (header_bytes_ < kHeaderBytes) return std::nullopt;
    if (length_ > limit_) {
      throw InvalidArgument(
          concat("a frame of ", length_, " bytes is announced; at most ", limit_, " are allowed"));
    }
  }
  const std::size_t taken = std::min<std::size_t>(length_ - payload_.size(), bytes.size());
  payload_.append(bytes.substr(0, taken));
  bytes.remove_prefix(taken);
  if (payload_.size() < length_) return std::nullopt;
  header_bytes_ = 0;
  length_ = 0;
  return std::exchange(payload_, {});
}

}  // namespace lockstep
