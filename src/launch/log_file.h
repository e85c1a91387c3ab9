#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/unique_fd.h"

namespace lockstep {

/// How many files rotation keeps beside the current one: stdout.log.1 (the newest) to stdout.log.5.
inline constexpr int kRotatedLogs = 5;

/// Opens a log file as it is handed to a worker: at its end, made if it is not there. Throws
/// SystemError.
UniqueFd open_log_file(const std::string& path);

struct LogFileOptions {
  std::string path;
  std::uintmax_t max_bytes = 0;  // begin a new file beyond this; 0: never
  std::function<void(const std::string& message)> warn = [](const std::string&) {};
};

/// A log file that the launcher writes, at the end of what is there.
///
/// Training must not stop for want of a log: when the disk is full or the file cannot be opened,
/// one warning is given, what comes is dropped, and once writing works again the file says how much
/// is missing. Rotation happens between lines, unless a line is as long as a file.
///
/// Not thread-safe.
class LogFile {
 public:
  explicit LogFile(LogFileOptions options) : options_(std::move(options)) {}

  void write(std::string_view text);

 private:
  bool open();
  void put(std::string_view text);
  std::size_t put_all(std::string_view text);  // returns how much could not be written
  void lose(std::size_t bytes);
  std::size_t length_before_rotation(std::string_view text) const;
  void rotate();

  LogFileOptions options_;
  UniqueFd fd_;
  std::uintmax_t size_ = 0;
  std::uintmax_t lost_ = 0;  // bytes dropped since writing last worked
  std::string reason_;       // why
  bool warned_ = false;
  bool at_line_start_ = true;
};

}  // namespace lockstep
