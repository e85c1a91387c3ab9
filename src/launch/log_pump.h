#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/unique_fd.h"
#include "launch/line_prefix.h"
#include "launch/line_tail.h"

namespace lockstep {

/// Where one output stream of one worker goes.
struct StreamOptions {
  std::string file;      // gets every byte as it came; empty: none
  bool console = false;  // shown on console_fd, with the prefix before each line
  int console_fd = 1;
  LinePrefix prefix;
  bool colour = false;               // of the prefix
  std::vector<std::string> needles;  // lines that hold one of these also go to filtered_file
  std::string filtered_file;         // with the prefix; streams may share one
  std::uintmax_t max_bytes = 0;      // rotate `file` beyond this; 0: never
  bool keep_tail = true;             // for tail()
  bool terminal = false;   // give the worker a pseudo terminal, so that isatty() stays true in it
  bool held_back = false;  // until redirect() says where it goes; the last 64 KiB are kept
};

struct LogPumpOptions {
  int message_fd = 2;                           // where warnings go, about a full disk for one
  std::chrono::milliseconds hold_partial{100};  // see below
  std::chrono::milliseconds stall_after{5000};  // a full console that takes nothing for this long
  std::size_t console_queue_bytes = 1 << 20;
};

/// Reads what workers write and puts it into files and on the console, in a thread of its own.
///
/// On the console lines of different workers are never mixed. Text without a newline is held back
/// until its newline comes, the stream ends, it grows beyond 64 KiB, or `hold_partial` has passed
/// (ten times that where the console is no terminal), so that progress bars move and the last words
/// before a hang are seen. ConsoleLines says how such an open line is kept apart from others.
///
/// A console that does not read holds up nothing but itself: up to 1 MiB is queued. Then workers
/// whose output has no file wait in their own writes, as they would without us. For those that have
/// one, file writing waits while the console is slow, but once it has taken nothing for
/// `stall_after` it goes on without the console, which later shows how many lines it missed.
///
/// All functions may be called by any thread, are quick, and wait for the pump's thread no longer
/// than their limits.
class LogPump {
 public:
  explicit LogPump(LogPumpOptions options = {});

  /// Drops what has not been written: call drain_all() first.
  ~LogPump();

  LogPump(const LogPump&) = delete;
  LogPump& operator=(const LogPump&) = delete;

  /// The descriptor for the worker to write to, closed on exec. Close it here once the worker has
  /// its copy: the stream ends when nobody holds it open. An earlier stream of this number is
  /// closed. Throws SystemError when no pipe can be made.
  UniqueFd open(std::uint64_t stream, StreamOptions options);

  /// From now on the stream goes there; so does what was held back of it. Whether it is a terminal,
  /// and whether it has a tail, stays as it was.
  void redirect(std::uint64_t stream, StreamOptions options);

  /// The stream's last 20 lines, oldest first. What the worker wrote before this call is among
  /// them, unless the file system makes the pump wait for more than a second, or did so within the
  /// last ten. Call it from one thread.
  std::vector<std::string> tail(std::uint64_t stream);

  /// Puts out what the stream has written and forgets it. A process that still writes to it gets
  /// SIGPIPE.
  void close(std::uint64_t stream);

  /// Puts lines of the launcher's own on a console, between those of workers.
  void print(int console_fd, std::string text);

  /// Waits until all streams have ended and everything is written, no longer than `limit`. True if
  /// that is so. What streams hold back is put out in any case.
  bool drain_all(std::chrono::milliseconds limit);

  /// Call when the agent's own terminal has changed its size.
  void resize_terminals();

 private:
  class Reader;  // what the thread owns

  std::shared_ptr<LineTail> tail_of(std::uint64_t stream);

  std::unique_ptr<Reader> reader_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<LineTail>> tails_;
  std::chrono::steady_clock::time_point slow_until_;  // tail() does not wait again before
  std::thread thread_;
};

}  // namespace lockstep
