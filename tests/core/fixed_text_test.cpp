#include "core/fixed_text.h"

#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using lockstep::FixedText;

namespace {

std::string escaped(std::string_view text) {
  char storage[256];
  return std::string(FixedText(storage).add_json(text).view());
}

}  // namespace

TEST(FixedText, text_and_numbers_are_joined) {
  char storage[64];
  FixedText text(storage);
  text.add("a").add("").add_decimal(0).add(" ").add_decimal(1234567890123456789).add(" ");
  text.add_hex(0).add(" ").add_hex(std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(text.view(), "a0 1234567890123456789 0x0 0xffffffffffffffff");
  EXPECT_STREQ(text.c_str(), "a0 1234567890123456789 0x0 0xffffffffffffffff");
  EXPECT_FALSE(text.truncated());
}

TEST(FixedText, what_does_not_fit_is_left_out_and_nothing_beyond_is_touched) {
  char storage[9] = "........";
  char small[5] = "....";
  FixedText text(small);
  text.add("abc").add("def").add("g");
  EXPECT_EQ(text.view(), "abcd");
  EXPECT_EQ(small[4], '\0');
  EXPECT_TRUE(text.truncated());
  EXPECT_STREQ(storage, "........");

  FixedText exact(storage);
  exact.add("12345678");
  EXPECT_EQ(exact.view(), "12345678");
  EXPECT_FALSE(exact.truncated());
}

TEST(FixedText, json_is_ascii_and_escapes_what_json_demands) {
  EXPECT_EQ(escaped("plain"), "plain");
  EXPECT_EQ(escaped("\"\\\n\t\x7f"), "\\\"\\\\\\n\\u0009\\u007f");
  EXPECT_EQ(escaped(std::string_view("\0", 1)), "\\u0000");
  EXPECT_EQ(escaped("\xc3\xa9\xe2\x82\xac"), "\\u00e9\\u20ac");
  EXPECT_EQ(escaped("\xf0\x9f\x98\x80"), "\\ud83d\\ude00");
}

TEST(FixedText, bytes_that_are_not_utf8_are_replaced_one_by_one) {
  EXPECT_EQ(escaped("\xff"), "\\ufffd");
  EXPECT_EQ(escaped("\x80z"), "\\ufffdz");
  EXPECT_EQ(escaped("\xc3"), "\\ufffd");                                   // cut short
  EXPECT_EQ(escaped("\xc0\xaf"), "\\ufffd\\ufffd");                        // overlong
  EXPECT_EQ(escaped("\xe0\x80\xaf"), "\\ufffd\\ufffd\\ufffd");             // overlong
  EXPECT_EQ(escaped("\xed\xa0\x80"), "\\ufffd\\ufffd\\ufffd");             // a surrogate
  EXPECT_EQ(escaped("\xf4\x90\x80\x80"), "\\ufffd\\ufffd\\ufffd\\ufffd");  // beyond Unicode
}

TEST(FixedText, every_two_bytes_give_a_string_that_a_json_parser_reads) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second)};
      const std::string text = escaped({bytes, 2});
      ASSERT_TRUE(nlohmann::json::accept("\"" + text + "\"")) << first << " " << second;
    }
  }
}

TEST(FixedText, a_line_has_no_control_characters) {
  char storage[64];
  EXPECT_EQ(FixedText(storage).add_line("a\r\nb\x1b[31m\xc3\xa9").view(), "a  b [31m\xc3\xa9");
}
