#include "control/frame.h"

#include <vector>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::encode_frame;
using lockstep::FrameDecoder;
using lockstep::InvalidArgument;

namespace {

// What comes out of a stream that arrives in pieces of this many bytes.
std::vector<std::string> decode(const std::string& stream, std::size_t piece) {
  FrameDecoder decoder;
  std::vector<std::string> frames;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    std::string_view bytes = std::string_view(stream).substr(at, piece);
    while (auto frame = decoder.next(bytes)) frames.push_back(std::move(*frame));
    EXPECT_TRUE(bytes.empty());
  }
  EXPECT_TRUE(decoder.at_boundary());
  return frames;
}

}  // namespace

TEST(Frame, carries_a_little_endian_length_before_the_payload) {
  EXPECT_EQ(encode_frame("abc"), std::string("\x03\0\0\0abc", 7));
  EXPECT_EQ(encode_frame(std::string(258, 'x')).substr(0, 4), std::string("\x02\x01\0\0", 4));
}

TEST(Frame, comes_back_whole_however_the_stream_is_cut) {
  const std::vector<std::string> sent = {"", "a", std::string(1000, 'b'), std::string("\0\xff", 2),
                                         ""};
  std::string stream;
  for (const std::string& payload : sent) stream += encode_frame(payload);
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    ASSERT_EQ(decode(stream, piece), sent) << "in pieces of " << piece;
  }
}

TEST(Frame, of_the_largest_size_passes_and_one_byte_more_does_not) {
  const std::string largest(lockstep::kMaxFrameBytes, 'x');
  EXPECT_EQ(decode(encode_frame(largest), 65536).at(0), largest);
  EXPECT_THROW(encode_frame(largest + 'x'), InvalidArgument);
}

TEST(FrameDecoder, refuses_a_length_above_its_limit_before_the_payload_comes) {
  FrameDecoder decoder(10);
  std::string_view fits("\x0a\0\0\0", 4);
  EXPECT_FALSE(decoder.next(fits));
  FrameDecoder strict(10);
  std::string_view too_long("\x0b\0\0\0", 4);
  EXPECT_THROW(strict.next(too_long), InvalidArgument);
  FrameDecoder huge;
  std::string_view all_ones("\xff\xff\xff\xff", 4);
  EXPECT_THROW(huge.next(all_ones), InvalidArgument);
}

TEST(FrameDecoder, takes_another_limit_between_two_frames) {
  FrameDecoder decoder(1);
  const std::string stream = encode_frame("a") + encode_frame("bcd");
  std::string_view bytes = stream;
  EXPECT_EQ(decoder.next(bytes), "a");
  decoder.set_limit(3);
  EXPECT_EQ(decoder.next(bytes), "bcd");
}

TEST(FrameDecoder, knows_whether_a_frame_is_cut_off) {
  FrameDecoder decoder;
  EXPECT_TRUE(decoder.at_boundary());
  std::string_view half("\x02\0", 2);
  EXPECT_FALSE(decoder.next(half));
  EXPECT_FALSE(decoder.at_boundary());
}
