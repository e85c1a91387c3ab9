#include "launch/console_lines.h"

#include <string>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::ConsoleLines;

namespace {

class Screen {
 public:
  explicit Screen(bool terminal) : lines_(terminal) {}

  Screen& write(int stream, const std::string& text, bool with_prefix = true) {
    lines_.write(static_cast<std::uint64_t>(stream), text, prefix(stream, with_prefix), out_);
    return *this;
  }
  Screen& end(int stream, bool with_prefix = true) {
    lines_.end(static_cast<std::uint64_t>(stream), prefix(stream, with_prefix), out_);
    return *this;
  }
  Screen& message(const std::string& text) {
    lines_.message(text, out_);
    return *this;
  }
  const std::string& out() const { return out_; }

 private:
  static ConsoleLines::Prefix prefix(int stream, bool wanted) {
    if (!wanted) return nullptr;
    return [stream] { return lockstep::concat("[", stream, "]"); };
  }
  ConsoleLines lines_;
  std::string out_;
};

}  // namespace

TEST(ConsoleLines, each_line_has_one_prefix) {
  Screen screen(false);
  screen.write(0, "one\ntwo\n\n").write(1, "three\n");
  EXPECT_EQ(screen.out(), "[0]one\n[0]two\n[0]\n[1]three\n");
}

TEST(ConsoleLines, a_stream_goes_on_in_its_open_line) {
  Screen screen(false);
  screen.write(0, "loading").write(0, "...").write(0, " done\nnext\n");
  EXPECT_EQ(screen.out(), "[0]loading... done\n[0]next\n");
}

TEST(ConsoleLines, another_stream_never_lands_in_an_open_line) {
  Screen screen(false);
  screen.write(0, "loading").write(1, "hello\n").write(0, " done\n");
  EXPECT_EQ(screen.out(), "[0]loading\n[1]hello\n[0] done\n");
}

TEST(ConsoleLines, a_message_of_the_launcher_stands_in_lines_of_its_own) {
  Screen screen(true);
  screen.write(0, "loading").message("restarting").write(0, "x\n").message("end\n");
  EXPECT_EQ(screen.out(), "[0]loading\nrestarting\n[0]x\nend\n");
}

TEST(ConsoleLines, a_progress_bar_on_a_terminal_keeps_its_prefix) {
  Screen screen(true);
  screen.write(0, "\r 10%").write(0, "\r 20%").write(0, "\r").write(0, " 30%\r\n");
  EXPECT_EQ(screen.out(), "\r[0] 10%\r[0] 20%\r[0] 30%\r\n");
}

TEST(ConsoleLines, a_progress_bar_gives_way_and_comes_back) {
  Screen screen(true);
  screen.write(0, "\r 10%").write(1, "hello\n").write(0, "\r 20%").write(1, "again\n");
  EXPECT_EQ(screen.out(), "\r[0] 10%\r\033[K[1]hello\n\r[0] 20%\r\033[K[1]again\n");
}

TEST(ConsoleLines, the_last_state_of_a_progress_bar_is_not_lost) {
  Screen newline(true);
  newline.write(0, "\r100%").write(1, "hello\n").write(0, "\n");
  EXPECT_EQ(newline.out(), "\r[0]100%\r\033[K[1]hello\n[0]100%\n");
  Screen ended(true);
  ended.write(0, "\r100%").write(1, "hello\n").end(0);
  EXPECT_EQ(ended.out(), "\r[0]100%\r\033[K[1]hello\n[0]100%\n");
}

TEST(ConsoleLines, away_from_a_terminal_carriage_returns_are_plain_bytes) {
  Screen screen(false);
  screen.write(0, "\r10%\r20%").write(1, "hello\n").write(0, "\r30%\n");
  EXPECT_EQ(screen.out(), "[0]\r10%\r20%\n[1]hello\n[0]\r30%\n");
}

TEST(ConsoleLines, without_prefix_and_competition_bytes_pass_unchanged) {
  const std::string text = "\r10%\r\n\n\033[A\033[2Kx\rpart";
  for (const bool terminal : {false, true}) {
    Screen screen(terminal);
    for (const char byte : text) screen.write(0, std::string(1, byte), false);
    screen.end(0, false);
    EXPECT_EQ(screen.out(), text);
  }
}

TEST(ConsoleLines, what_comes_after_a_stream_that_ended_without_newline_begins_a_line) {
  Screen raw(false);
  raw.write(0, "part", false).end(0, false).write(1, "x\n", false);
  EXPECT_EQ(raw.out(), "part\nx\n");
  Screen prefixed(false);
  prefixed.write(0, "part").end(0);
  EXPECT_EQ(prefixed.out(), "[0]part\n");
}
