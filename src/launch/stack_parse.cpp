#include "launch/stack_parse.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <optional>
#include <sstream>
#include <string_view>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// The number that follows `before` in a line.
std::optional<pid_t> number_after(const std::string& line, std::string_view before) {
  const std::size_t begin = line.find(before);
  if (begin == std::string::npos) {
    return std::nullopt;
  }
  const std::size_t first = begin + before.size();
  const std::size_t end = line.find_first_not_of("0123456789", first);
  return parse_integer<pid_t>(
      std::string_view(line).substr(first, end == std::string::npos ? end : end - first));
}

// "#12 0x0000aaaabbbb0123 in main () at a.cpp:3" becomes "main () at a.cpp:3".
std::optional<std::string> numbered_frame(const std::string& line) {
  if (!line.starts_with("#") || line.size() < 2 ||
      std::isdigit(static_cast<unsigned char>(line[1])) == 0) {
    return std::nullopt;
  }
  std::size_t begin = line.find_first_not_of("0123456789", 1);
  begin = begin == std::string::npos ? begin : line.find_first_not_of(' ', begin);
  std::string frame = begin == std::string::npos ? "" : line.substr(begin);
  if (frame.starts_with("0x")) {
    const std::size_t end = frame.find(' ');
    // An address alone is a place that has no name: generated code, or a stripped library.
    frame = end == std::string::npos ? "??" : frame.substr(frame.find_first_not_of(' ', end));
    if (frame.starts_with("in ")) {
      frame = frame.substr(3);
    }
  }
  return frame.substr(0, frame.find("@@"));  // the version of a symbol
}

// Splits output by lines that begin a thread, and takes from the others what is a frame.
std::vector<ThreadStack> parse(
    const std::string& output,
    const std::function<std::optional<pid_t>(const std::string&)>& thread_of,
    const std::function<std::optional<std::string>(const std::string&)>& frame_of) {
  std::vector<ThreadStack> stacks;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (const auto tid = thread_of(line)) {
      stacks.push_back({.tid = *tid, .frames = {}});
    } else if (!stacks.empty()) {
      if (auto frame = frame_of(line)) {
        stacks.back().frames.push_back(std::move(*frame));
      }
    }
  }
  std::erase_if(stacks, [](const ThreadStack& stack) { return stack.frames.empty(); });
  return stacks;
}

}  // namespace

std::vector<ThreadStack> parse_gdb(const std::string& output) {
  const auto thread_of = [](const std::string& line) -> std::optional<pid_t> {
    if (!line.starts_with("Thread ") || !line.ends_with(":")) {
      return std::nullopt;
    }
    const auto lwp = number_after(line, "(LWP ");
    return lwp ? lwp : number_after(line, "(process ");
  };
  return parse(output, thread_of, numbered_frame);
}

std::vector<ThreadStack> parse_eu_stack(const std::string& output) {
  const auto thread_of = [](const std::string& line) -> std::optional<pid_t> {
    return line.starts_with("TID ") && line.ends_with(":") ? number_after(line, "TID ")
                                                           : std::nullopt;
  };
  return parse(output, thread_of, numbered_frame);
}

std::vector<ThreadStack> parse_py_spy(const std::string& output) {
  // "Thread 123 (idle): "MainThread"". Under a tracer that cannot tell the number of the kernel it
  // prints Python's own in hexadecimal: then the thread has none.
  const auto thread_of = [](const std::string& line) -> std::optional<pid_t> {
    if (!line.starts_with("Thread ")) {
      return std::nullopt;
    }
    return number_after(line, "Thread ").value_or(0);
  };
  const auto frame_of = [](const std::string& line) -> std::optional<std::string> {
    if (!line.starts_with("    ")) {
      return std::nullopt;
    }
    const std::string frame = line.substr(line.find_first_not_of(' '));
    // "0xffffb17e7744 (libc.so.6)": the address differs from process to process.
    return frame.starts_with("0x")
               ? concat("??", frame.substr(std::min(frame.find(' '), frame.size())))
               : frame;
  };
  return parse(output, thread_of, frame_of);
}

}  // namespace lockstep
