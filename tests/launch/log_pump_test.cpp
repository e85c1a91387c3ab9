#include "launch/log_pump.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "launch/pseudo_terminal.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::LinePrefix;
using lockstep::LinePrefixValues;
using lockstep::LogPump;
using lockstep::open_pseudo_terminal;
using lockstep::PseudoTerminal;
using lockstep::StreamOptions;
using lockstep::UniqueFd;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

using LogLines = std::vector<std::string>;

// A console that is a plain file.
class FileConsole {
 public:
  FileConsole()
      : fd_(::open((folder_ / "console").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {}
  int fd() const { return fd_.get(); }
  std::string text() const { return read_text(folder_ / "console"); }

 private:
  TemporaryFolder folder_;
  UniqueFd fd_;
};

struct LogPipe {
  LogPipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    in = UniqueFd(ends[0]);
    out = UniqueFd(ends[1]);
  }
  UniqueFd in, out;
};

void put(const UniqueFd& fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd.get(), text.data(), text.size());
    ASSERT_GT(written, 0);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

StreamOptions on_console(int fd, int rank) {
  StreamOptions options;
  options.console = true;
  options.console_fd = fd;
  LinePrefixValues values;
  values.rank = rank;
  options.prefix = LinePrefix("[${rank}]", values);
  return options;
}

// Reads until `wanted` has come; what has come by the time limit otherwise.
std::string read_until(int fd, const std::string& wanted) {
  std::string text;
  const auto deadline = std::chrono::steady_clock::now() + seconds(10);
  while (text.find(wanted) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
    pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 100) <= 0) continue;
    char buffer[4096];
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
  }
  return text;
}

bool holds_within(seconds limit, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

}  // namespace

TEST(LogPump, a_stream_reaches_its_file_console_and_tail) {
  const TemporaryFolder folder;
  const FileConsole console;
  LogPump pump;
  StreamOptions options = on_console(console.fd(), 3);
  options.file = folder / "stderr.log";
  UniqueFd worker = pump.open(7, options);
  put(worker, "one\ntwo");
  EXPECT_EQ(pump.tail(7), (LogLines{"one", "two"}));
  worker.reset();
  EXPECT_TRUE(pump.drain_all(seconds(10)));
  EXPECT_EQ(read_text(folder / "stderr.log"), "one\ntwo");
  EXPECT_EQ(console.text(), "[3]one\n[3]two\n");
}

TEST(LogPump, everything_written_before_the_end_is_in_the_tail) {
  LogPump pump;
  for (std::uint64_t stream = 0; stream < 200; ++stream) {
    UniqueFd worker = pump.open(stream, {});
    put(worker, std::string(50000, 'x') + "\nlast words\n");
    worker.reset();
    const LogLines tail = pump.tail(stream);
    ASSERT_EQ(tail.size(), 2u);
    ASSERT_EQ(tail.back(), "last words");
    pump.close(stream);
  }
  EXPECT_EQ(pump.tail(5), LogLines{});
}

TEST(LogPump, lines_of_many_writers_are_never_mixed) {
  constexpr int kStreams = 8;
  constexpr int kLinesEach = 2000;
  const FileConsole console;
  LogPump pump;
  std::vector<std::thread> workers;
  for (int rank = 0; rank < kStreams; ++rank) {
    auto fd = std::make_shared<UniqueFd>(
        pump.open(static_cast<std::uint64_t>(rank), on_console(console.fd(), rank)));
    workers.emplace_back([fd, rank] {
      for (int i = 0; i < kLinesEach; ++i) {
        const std::string line = std::string(static_cast<std::size_t>(i % 300), 'a' + rank);
        put(*fd, line.substr(0, line.size() / 2));  // in two parts
        put(*fd, line.substr(line.size() / 2) + "\n");
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  workers.clear();
  ASSERT_TRUE(pump.drain_all(seconds(30)));

  std::istringstream text(console.text());
  int lines = 0;
  std::vector<int> seen(kStreams);
  for (std::string line; std::getline(text, line); ++lines) {
    const int rank = line[1] - '0';
    const int number = seen[static_cast<std::size_t>(rank)]++;
    ASSERT_EQ(line, lockstep::concat("[", rank, "]") +
                        std::string(static_cast<std::size_t>(number % 300), 'a' + rank));
  }
  EXPECT_EQ(lines, kStreams * kLinesEach);
}

TEST(LogPump, text_without_newline_waits_away_from_a_terminal_and_shows_on_one) {
  const PseudoTerminal screen = open_pseudo_terminal(-1);
  LogPump pump;
  const UniqueFd worker = pump.open(0, on_console(screen.program_end.get(), 0));
  put(worker, "\r 10%");
  EXPECT_EQ(read_until(screen.our_end.get(), "10%"), "\r[0] 10%");
  put(worker, "\r 20%");
  EXPECT_EQ(read_until(screen.our_end.get(), "20%"), "\r[0] 20%");

  const FileConsole console;
  const UniqueFd other = pump.open(1, on_console(console.fd(), 1));
  put(other, "part");
  EXPECT_EQ(pump.tail(1), LogLines{"part"});  // it has been read
  EXPECT_EQ(console.text(), "");
  put(other, "ial\n");
  EXPECT_TRUE(holds_within(seconds(10), [&] { return console.text() == "[1]partial\n"; }));
}

TEST(LogPump, a_filter_copies_matching_lines_of_all_streams) {
  const TemporaryFolder folder;
  LogPump pump;
  std::vector<UniqueFd> workers;
  for (int rank = 0; rank < 2; ++rank) {
    StreamOptions options = on_console(1, rank);
    options.console = false;
    options.needles = {"loss", "WARN"};
    options.filtered_file = folder / "filtered_stdout.log";
    workers.push_back(pump.open(static_cast<std::uint64_t>(rank), options));
  }
  put(workers[0], "step 1\nlo");
  put(workers[0], "ss 0.5\n");
  pump.tail(0);
  put(workers[1], "nothing\nWARN: odd");
  workers.clear();
  ASSERT_TRUE(pump.drain_all(seconds(10)));
  EXPECT_EQ(read_text(folder / "filtered_stdout.log"), "[0]loss 0.5\n[1]WARN: odd\n");
}

TEST(LogPump, a_worker_on_a_terminal_is_given_one) {
  const PseudoTerminal screen = open_pseudo_terminal(-1);
  winsize size = {.ws_row = 30, .ws_col = 111, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(screen.our_end.get(), TIOCSWINSZ, &size), 0);
  LogPump pump;
  StreamOptions options;
  options.console = true;
  options.console_fd = screen.program_end.get();
  options.terminal = true;
  UniqueFd worker = pump.open(0, options);
  EXPECT_EQ(::isatty(worker.get()), 1);
  winsize seen = {};
  ASSERT_EQ(::ioctl(worker.get(), TIOCGWINSZ, &seen), 0);
  EXPECT_EQ(seen.ws_col, 111);

  size.ws_col = 55;
  ASSERT_EQ(::ioctl(screen.our_end.get(), TIOCSWINSZ, &size), 0);
  pump.resize_terminals();
  EXPECT_TRUE(holds_within(seconds(10), [&] {
    return ::ioctl(worker.get(), TIOCGWINSZ, &seen) == 0 && seen.ws_col == 55;
  }));

  put(worker, "a\r\nb\tc\n\033[Ad\n");
  EXPECT_EQ(read_until(screen.our_end.get(), "d\n"), "a\r\nb\tc\n\033[Ad\n");
  put(worker, "last words");
  worker.reset();
  EXPECT_EQ(pump.tail(0).back(), "last words");
}

TEST(LogPump, a_console_that_does_not_read_holds_up_neither_files_nor_the_caller) {
  const TemporaryFolder folder;
  const LogPipe pager;
  LogPump pump({.stall_after = milliseconds(50), .console_queue_bytes = 1000});
  StreamOptions options = on_console(pager.out.get(), 0);
  options.file = folder / "log";
  UniqueFd worker = pump.open(0, options);
  const std::string lines(1 << 20, '\n');
  put(worker, lines);  // far more than pipe and queue hold
  EXPECT_TRUE(holds_within(
      seconds(20), [&] { return std::filesystem::file_size(folder / "log") == lines.size(); }));
  EXPECT_EQ(pump.tail(0).size(), 20u);
  worker.reset();
  const auto before = std::chrono::steady_clock::now();
  EXPECT_FALSE(pump.drain_all(milliseconds(100)));
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(5));
}

TEST(LogPump, a_console_that_reads_again_says_what_it_missed) {
  const TemporaryFolder folder;
  LogPipe pager;
  LogPump pump({.stall_after = milliseconds(50), .console_queue_bytes = 1000});
  StreamOptions options = on_console(pager.out.get(), 0);
  options.file = folder / "log";
  UniqueFd worker = pump.open(0, options);
  put(worker, std::string(1 << 20, '\n'));
  ASSERT_TRUE(holds_within(seconds(20),
                           [&] { return std::filesystem::file_size(folder / "log") == 1u << 20; }));
  const std::string note = "the log files have them\n";
  EXPECT_NE(read_until(pager.in.get(), note).find(note), std::string::npos);
  put(worker, "end\n");
  EXPECT_TRUE(read_until(pager.in.get(), "end\n").ends_with("[0]end\n"));
}

TEST(LogPump, without_a_file_the_worker_waits_and_nothing_is_lost) {
  LogPipe pager;
  LogPump pump({.stall_after = milliseconds(1), .console_queue_bytes = 1000});
  StreamOptions options = on_console(pager.out.get(), 0);
  options.prefix = {};
  auto worker = std::make_shared<UniqueFd>(pump.open(0, options));
  std::string sent;
  for (int i = 0; i < 100000; ++i) sent += std::to_string(i) + "\n";
  std::thread writer([&] {
    put(*worker, sent);
    worker.reset();
  });
  const std::string shown = read_until(pager.in.get(), "\n99999\n");
  writer.join();
  EXPECT_TRUE(shown == sent);  // not EXPECT_EQ: it would print both
}

TEST(LogPump, a_console_that_was_closed_does_no_harm) {
  const TemporaryFolder folder;
  LogPipe head;
  head.in.reset();
  LogPump pump;
  StreamOptions options = on_console(head.out.get(), 0);
  options.file = folder / "log";
  UniqueFd worker = pump.open(0, options);
  put(worker, "one\ntwo\n");
  worker.reset();
  EXPECT_TRUE(pump.drain_all(seconds(10)));
  EXPECT_EQ(read_text(folder / "log"), "one\ntwo\n");
}

TEST(LogPump, a_file_that_cannot_be_written_is_said_once_on_the_console) {
  const TemporaryFolder folder;
  const FileConsole console;
  LogPump pump({.message_fd = console.fd()});
  StreamOptions options;
  options.file = folder / "missing/log";
  UniqueFd worker = pump.open(0, options);
  put(worker, "one\n");
  pump.tail(0);
  put(worker, "two\n");
  worker.reset();
  EXPECT_TRUE(pump.drain_all(seconds(10)));
  const std::string text = console.text();
  EXPECT_TRUE(text.starts_with("lockstep: cannot write '")) << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
}

TEST(LogPump, a_number_can_be_used_again_by_the_worker_that_replaces_another) {
  const TemporaryFolder folder;
  LogPump pump;
  StreamOptions options;
  options.file = folder / "log";
  for (const char* text : {"first\n", "second\n"}) {
    UniqueFd worker = pump.open(0, options);
    put(worker, text);
    EXPECT_EQ(pump.tail(0).size(), 1u);
  }
  EXPECT_TRUE(pump.drain_all(seconds(10)));
  EXPECT_EQ(read_text(folder / "log"), "first\nsecond\n");
}

TEST(LogPump, what_is_held_back_goes_where_the_stream_is_redirected_to) {
  TemporaryFolder folder;
  FileConsole console;
  LogPump pump;
  StreamOptions held;
  held.held_back = true;
  UniqueFd worker = pump.open(1, held);
  put(worker, "loading\n");
  ASSERT_EQ(pump.tail(1), (LogLines{"loading"}));  // so it has come
  EXPECT_EQ(console.text(), "");
  StreamOptions options = on_console(console.fd(), 3);
  options.file = folder / "log";
  pump.redirect(1, options);
  put(worker, "training\n");
  worker.reset();
  EXPECT_TRUE(pump.drain_all(seconds(30)));
  EXPECT_EQ(read_text(folder / "log"), "loading\ntraining\n");
  EXPECT_EQ(console.text(), "[3]loading\n[3]training\n");
}

TEST(LogPump, of_what_is_held_back_the_last_is_kept) {
  TemporaryFolder folder;
  LogPump pump;
  StreamOptions held;
  held.held_back = true;
  UniqueFd worker = pump.open(1, held);
  for (int i = 0; i < 3; ++i) put(worker, std::string(40 << 10, static_cast<char>('a' + i)));
  put(worker, "\nend\n");
  ASSERT_EQ(pump.tail(1).back(), "end");
  StreamOptions options;
  options.file = folder / "log";
  pump.redirect(1, options);
  worker.reset();
  EXPECT_TRUE(pump.drain_all(seconds(30)));
  const std::string text = read_text(folder / "log");
  EXPECT_EQ(text.size(), std::size_t{64 << 10});
  EXPECT_TRUE(text.ends_with("c\nend\n"));
}

TEST(LogPump, a_stream_that_a_stray_process_keeps_open_ends_with_the_limit) {
  const FileConsole console;
  LogPump pump;
  const UniqueFd worker = pump.open(0, on_console(console.fd(), 0));
  put(worker, "held");
  EXPECT_FALSE(pump.drain_all(milliseconds(50)));
  EXPECT_TRUE(holds_within(seconds(10), [&] { return console.text() == "[0]held"; }));
}

TEST(LogPump, the_launchers_lines_come_in_between) {
  const FileConsole console;
  LogPump pump;
  pump.print(console.fd(), "starting");
  UniqueFd worker = pump.open(0, on_console(console.fd(), 0));
  put(worker, "one\n");
  pump.tail(0);
  pump.print(console.fd(), "stopping\n");
  worker.reset();
  EXPECT_TRUE(pump.drain_all(seconds(10)));
  EXPECT_EQ(console.text(), "starting\n[0]one\nstopping\n");
}
