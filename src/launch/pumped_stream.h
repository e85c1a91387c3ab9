#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "launch/console_lines.h"
#include "launch/console_sink.h"
#include "launch/log_file.h"
#include "launch/log_pump.h"

namespace lockstep {

/// A console and what is open on it.
struct PumpedConsole {
  PumpedConsole(int fd, bool terminal, ConsoleSink::Options options)
      : lines(terminal), sink(fd, std::move(options)), is_terminal(terminal) {}

  void message(std::string_view text);
  void say_what_was_missed();

  ConsoleLines lines;
  ConsoleSink sink;
  bool is_terminal;
  std::uint64_t missed = 0;  // lines not shown because it did not read
};

/// One stream on its way from a worker to files and console. Used by the pump's thread.
class PumpedStream {
 public:
  using Clock = std::chrono::steady_clock;

  /// Where its text goes. All may be null.
  struct Outlets {
    std::shared_ptr<LogFile> file;
    std::shared_ptr<LogFile> filtered;
    PumpedConsole* console = nullptr;
  };
  struct Parts {
    std::uint64_t id = 0;
    UniqueFd input;
    StreamOptions options;
    std::shared_ptr<LineTail> tail;  // may be null
    Outlets outlets;
  };

  explicit PumpedStream(Parts parts) : parts_(std::move(parts)) {}

  int fd() const { return parts_.input.get(); }
  const StreamOptions& options() const { return parts_.options; }
  PumpedConsole* console() const { return parts_.outlets.console; }
  bool ended() const { return !parts_.input; }

  /// The console takes no more, and its stream must wait for it: it has no file, or the console may
  /// still come back.
  bool must_wait() const;

  /// Reads once and puts it where it belongs. False if there was nothing to read now.
  bool read_once();

  /// Reads what is there.
  void drain();

  /// What was held back goes there, and all that comes.
  void redirect(StreamOptions options, Outlets outlets);

  /// When held text must be shown; Clock::time_point::max() if none is held.
  Clock::time_point show_at(std::chrono::milliseconds hold) const;

  void show_held();

  /// Puts out what is held; the stream ends.
  void finish();

  bool paused = false;

 private:
  void take(std::string_view text);
  void put_out(std::string_view text);
  void filter(std::string_view text);
  void filter_line(std::string_view line);
  void hold_or_show(std::string_view text);
  void show(std::string_view text);
  std::string prefix(bool colour) const;
  ConsoleLines::Prefix console_prefix() const;

  Parts parts_;
  std::string held_;  // for the console: text since the last newline
  Clock::time_point held_since_;
  std::string unfiltered_;  // likewise for the filter
  std::string held_back_;   // while nobody has said where it goes
};

}  // namespace lockstep
