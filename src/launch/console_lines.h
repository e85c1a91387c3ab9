#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Puts the output of several streams together for one console, so that no line of one stream is
/// cut by another. Holds no descriptor: text goes in, text comes out.
///
/// The rules:
/// - The prefix stands once before each line, and on a terminal again after each carriage return.
/// - Text without a newline leaves its line open. The same stream goes on in it. Before another
///   stream or message() writes, the open line is ended: a progress bar on a terminal (a line with
///   carriage returns) is erased, and shown again in full when its stream goes on; any other line
///   is ended by a newline, and its stream goes on in a new line with a prefix.
/// - Apart from prefixes and what ends or erases an open line, bytes come out as they went in.
class ConsoleLines {
 public:
  using Prefix = std::function<std::string()>;  // called once for each prefix; null: none

  explicit ConsoleLines(bool terminal) : terminal_(terminal) {}

  void write(std::uint64_t stream, std::string_view text, const Prefix& prefix, std::string& out);

  /// The stream writes no more. If it has a prefix, a line that it left open is ended.
  void end(std::uint64_t stream, const Prefix& prefix, std::string& out);

  /// Lines of the launcher's own.
  void message(std::string_view text, std::string& out);

 private:
  // A line of one stream that has not ended.
  struct Line {
    std::string visible;      // since its start or the last carriage return, bounded
    bool rewritten = false;   // had a carriage return
    bool erased = false;      // another stream took its place on the terminal
    bool prefix_due = false;  // a carriage return was last
  };

  void close_open_line(std::string& out);

  bool terminal_;
  std::optional<std::uint64_t> open_;  // whose line the cursor is in
  std::map<std::uint64_t, Line> lines_;
};

}  // namespace lockstep
