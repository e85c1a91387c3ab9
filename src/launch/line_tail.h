#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// How many lines of a worker's output are kept for the failure report, and how much of each.
inline constexpr std::size_t kTailLines = 20;
inline constexpr std::size_t kTailLineBytes = 2000;

/// The last lines of a stream, in bounded memory. A line that was rewritten with carriage returns
/// counts as what it showed last. Thread-safe.
class LineTail {
 public:
  void add(std::string_view text);

  /// Oldest first, without newlines; a last line that has not ended yet is among them.
  std::vector<std::string> lines() const;

 private:
  void end_line();
  std::string current() const;

  mutable std::mutex mutex_;
  std::deque<std::string> lines_;
  std::string line_;     // the line that has not ended, as far as it is kept
  bool cut_ = false;     // it was longer
  bool begun_ = false;   // something of it has come, be it an empty text
  bool rewind_ = false;  // a carriage return came; the next text replaces the line
};

/// The last lines of a file, cut as LineTail does; what lies before `from` is left out. Empty if
/// the file cannot be read.
std::vector<std::string> file_tail(const std::string& path, std::size_t lines = kTailLines,
                                   std::size_t from = 0);

}  // namespace lockstep
