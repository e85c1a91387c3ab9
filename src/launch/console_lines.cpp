#include "launch/console_lines.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t kMaxVisible = 4096;
constexpr std::string_view kEraseLine = "\r\033[K";

}  // namespace

void ConsoleLines::close_open_line(std::string& out) {
  if (!open_) return;
  const auto found = lines_.find(*open_);
  if (terminal_ && found != lines_.end() && found->second.rewritten) {
    out += kEraseLine;
    found->second.erased = true;
  } else {
    out += '\n';
    if (found != lines_.end()) lines_.erase(found);
  }
  open_.reset();
}

void ConsoleLines::write(std::uint64_t stream, std::string_view text, const Prefix& prefix,
                         std::string& out) {
  if (text.empty()) return;
  if (open_ && *open_ != stream) close_open_line(out);
  const auto put_prefix = [&] {
    if (prefix) out += prefix();
  };

  Line line = lines_[stream];
  bool at_start = open_ != stream;
  bool prefix_due = at_start || line.prefix_due;
  if (line.erased && text.front() != '\r' && !line.visible.empty()) {
    put_prefix();
    out += line.visible;
    at_start = prefix_due = false;
  }
  line.erased = false;

  while (!text.empty()) {
    const std::size_t stop = terminal_ ? text.find_first_of("\r\n") : text.find('\n');
    const std::string_view segment = text.substr(0, stop);
    if (!segment.empty()) {
      if (prefix_due) put_prefix();
      prefix_due = at_start = false;
      out += segment;
      line.visible += segment.substr(0, kMaxVisible - std::min(line.visible.size(), kMaxVisible));
    }
    if (stop == std::string_view::npos) break;
    if (text[stop] == '\n') {
      if (at_start) put_prefix();
      line = Line{};
      at_start = prefix_due = true;
    } else {
      line.visible.clear();
      line.rewritten = true;
      at_start = false;
      prefix_due = true;
    }
    out += text[stop];
    text.remove_prefix(stop + 1);
  }

  if (at_start) {
    lines_.erase(stream);
    open_.reset();
  } else {
    line.prefix_due = prefix_due;
    lines_[stream] = std::move(line);
    open_ = stream;
  }
}

void ConsoleLines::end(std::uint64_t stream, const Prefix& prefix, std::string& out) {
  const auto found = lines_.find(stream);
  if (found != lines_.end() && found->second.erased && !found->second.visible.empty()) {
    // What a progress bar showed last stays on the screen.
    write(stream, "\n", prefix, out);
  }
  lines_.erase(stream);
  if (prefix && open_ == stream) {
    out += '\n';
    open_.reset();
  }
}

void ConsoleLines::message(std::string_view text, std::string& out) {
  if (text.empty()) return;
  close_open_line(out);
  out += text;
  if (text.back() != '\n') out += '\n';
}

}  // namespace lockstep
