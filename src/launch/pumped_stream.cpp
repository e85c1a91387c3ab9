#include "launch/pumped_stream.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestHeld = 64 << 10;
constexpr int kPatienceWithFiles = 10;
constexpr int kMostReads = 1024;  // more than a pipe can hold: someone goes on writing

}  // namespace

void PumpedConsole::message(std::string_view text) {
  std::string out;
  lines.message(text, out);
  sink.push(out);
}

void PumpedConsole::say_what_was_missed() {
  if (missed == 0) return;
  message(concat("lockstep: ", std::exchange(missed, 0),
                 " lines are not shown, because the console did not take them; the log files have "
                 "them"));
}

bool PumpedStream::must_wait() const {
  if (parts_.outlets.console == nullptr || !parts_.outlets.console->sink.full()) return false;
  return parts_.outlets.file == nullptr || !parts_.outlets.console->sink.stalled();
}

bool PumpedStream::read_once() {
  if (ended()) return false;
  std::array<char, 64 << 10> buffer;
  const ssize_t count = ::read(parts_.input.get(), buffer.data(), buffer.size());
  if (count > 0) {
    take({buffer.data(), static_cast<std::size_t>(count)});
    return true;
  }
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) return false;
  // The end of a pipe is 0, that of a pseudo terminal EIO.
  finish();
  return false;
}

void PumpedStream::drain() {
  for (int reads = 0; reads < kMostReads && read_once(); ++reads) {
  }
}

void PumpedStream::redirect(StreamOptions options, Outlets outlets) {
  const bool is_over = ended();  // and its last words may be among those that were held back
  options.terminal = parts_.options.terminal;
  parts_.options = std::move(options);
  parts_.outlets = std::move(outlets);
  put_out(std::exchange(held_back_, ""));
  if (is_over) finish();
}

void PumpedStream::take(std::string_view text) {
  if (parts_.tail) parts_.tail->add(text);
  if (!parts_.options.held_back) return put_out(text);
  held_back_ += text;
  if (held_back_.size() > kLongestHeld) held_back_.erase(0, held_back_.size() - kLongestHeld);
}

void PumpedStream::put_out(std::string_view text) {
  if (parts_.outlets.file) parts_.outlets.file->write(text);
  if (parts_.outlets.filtered) filter(text);
  if (parts_.outlets.console != nullptr) hold_or_show(text);
}

void PumpedStream::filter(std::string_view text) {
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    unfiltered_ += text.substr(0, end);
    filter_line(unfiltered_);
    unfiltered_.clear();
    text.remove_prefix(end + 1);
  }
  unfiltered_ += text.substr(0, kLongestHeld - std::min(unfiltered_.size(), kLongestHeld));
}

void PumpedStream::filter_line(std::string_view line) {
  const bool wanted = std::ranges::any_of(parts_.options.needles, [&](const std::string& needle) {
    return line.find(needle) != std::string_view::npos;
  });
  if (wanted) parts_.outlets.filtered->write(concat(prefix(/*colour=*/false), line, "\n"));
}

void PumpedStream::hold_or_show(std::string_view text) {
  const std::size_t last_end = text.rfind('\n');
  if (last_end != std::string_view::npos) {
    held_ += text.substr(0, last_end + 1);
    show_held();
    text.remove_prefix(last_end + 1);
  }
  if (text.empty()) return;
  if (held_.empty()) held_since_ = Clock::now();
  held_ += text;
  if (held_.size() > kLongestHeld) show_held();
}

PumpedStream::Clock::time_point PumpedStream::show_at(std::chrono::milliseconds hold) const {
  if (held_.empty() || parts_.outlets.console == nullptr) return Clock::time_point::max();
  // Nobody watches a file as closely as a terminal, and a line is whole more often after a while.
  return held_since_ + (parts_.outlets.console->is_terminal ? hold : kPatienceWithFiles * hold);
}

void PumpedStream::show_held() {
  show(held_);
  held_.clear();
}

void PumpedStream::show(std::string_view text) {
  if (text.empty()) return;
  PumpedConsole& console = *parts_.outlets.console;
  if (console.sink.full() && console.sink.stalled() && parts_.outlets.file) {
    console.missed += static_cast<std::uint64_t>(std::ranges::count(text, '\n'));
    return;
  }
  console.say_what_was_missed();
  std::string out;
  console.lines.write(parts_.id, text, console_prefix(), out);
  console.sink.push(out);
}

std::string PumpedStream::prefix(bool colour) const {
  const auto now = std::chrono::system_clock::now();
  return colour ? parts_.options.prefix.coloured(now) : parts_.options.prefix.text(now);
}

ConsoleLines::Prefix PumpedStream::console_prefix() const {
  if (parts_.options.prefix.empty()) return nullptr;
  return [this] { return prefix(parts_.options.colour); };
}

void PumpedStream::finish() {
  if (parts_.outlets.filtered && !unfiltered_.empty()) {
    filter_line(unfiltered_);
    unfiltered_.clear();
  }
  if (parts_.outlets.console != nullptr) {
    show_held();
    std::string out;
    parts_.outlets.console->lines.end(parts_.id, console_prefix(), out);
    parts_.outlets.console->sink.push(out);
    parts_.outlets.console = nullptr;
  }
  parts_.input.reset();
  parts_.outlets.file.reset();
  parts_.outlets.filtered.reset();
}

}  // namespace lockstep
