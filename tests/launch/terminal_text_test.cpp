#include "launch/terminal_text.h"

#include <gtest/gtest.h>

using lockstep::clipped;
using lockstep::final_state;
using lockstep::without_controls;

TEST(TerminalText, escape_sequences_and_control_characters_are_taken_out) {
  EXPECT_EQ(without_controls("a\033[1;31mb\033[0mc"), "abc");
  EXPECT_EQ(without_controls("\033]0;title\ax\033]8;;link\033\\y"), "xy");
  EXPECT_EQ(without_controls("a\tb\ac\x7f"), "a  bc");
  EXPECT_EQ(without_controls("cut \033["), "cut ");
  EXPECT_EQ(without_controls("cut \033"), "cut ");
}

TEST(TerminalText, utf8_stays_and_other_bytes_become_question_marks) {
  EXPECT_EQ(without_controls("gr\xc3\xbc\xc3\x9f \xe2\x96\x88"), "gr\xc3\xbc\xc3\x9f \xe2\x96\x88");
  EXPECT_EQ(without_controls("\xff\xc3"), "??");
  EXPECT_EQ(without_controls("\xc2\x9b"
                             "31m"),
            "??31m");  // an escape sequence in one character
}

TEST(TerminalText, a_rewritten_line_ends_as_its_last_state) {
  EXPECT_EQ(final_state("10%\r20%\r30%"), "30%");
  EXPECT_EQ(final_state("10%\r20%\r\r"), "20%");
  EXPECT_EQ(final_state("plain"), "plain");
  EXPECT_EQ(final_state(""), "");
}

TEST(TerminalText, long_text_is_cut_between_characters) {
  EXPECT_EQ(clipped("hello", 5), "hello");
  EXPECT_EQ(clipped("hello!", 5), "he...");
  EXPECT_EQ(clipped("\xc3\xbc\xc3\xbc\xc3\xbc\xc3\xbc", 6), "\xc3\xbc...");
}
