#include "launch/line_prefix.h"

#include <unistd.h>
#include <array>
#include <functional>
#include <optional>

#include "launch/wall_time.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kTime = "time";

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool continues_name(char c) {
  return begins_name(c) || (c >= '0' && c <= '9');
}

// The name at the front of `text`; empty if there is none.
std::string_view leading_name(std::string_view text) {
  if (text.empty() || !begins_name(text[0])) return {};
  std::size_t end = 1;
  while (end < text.size() && continues_name(text[end])) ++end;
  return text.substr(0, end);
}

struct Placeholder {
  std::string_view name;
  std::size_t length = 0;  // of all of it, with dollar sign and braces
};

// What a text that begins with a dollar sign begins with, if that names something.
std::optional<Placeholder> placeholder_at(std::string_view text) {
  const bool braced = text.size() > 1 && text[1] == '{';
  const std::string_view name = leading_name(text.substr(braced ? 2 : 1));
  if (name.empty()) return std::nullopt;
  if (!braced) return Placeholder{name, name.size() + 1};
  const std::size_t end = name.size() + 2;
  if (end >= text.size() || text[end] != '}') return std::nullopt;
  return Placeholder{name, end + 1};
}

std::optional<std::string> value_of(std::string_view name, const LinePrefixValues& values) {
  if (name == "role_name" || name == "role") return values.role_name;
  if (name == "rank") return std::to_string(values.rank);
  if (name == "local_rank") return std::to_string(values.local_rank);
  if (name == "node_rank") return std::to_string(values.node_rank);
  if (name == "host") return values.host;
  if (name == "epoch") return std::to_string(values.epoch);
  if (name == "restart_count") return std::to_string(values.restart_count);
  if (name == "stream") return std::string(values.stream);
  return std::nullopt;
}

// Calls one of the two for each stretch of the template.
void scan(std::string_view text, const std::function<void(std::string_view)>& plain,
          const std::function<void(std::string_view whole, std::string_view name)>& named) {
  while (!text.empty()) {
    const std::size_t dollar = text.find('$');
    plain(text.substr(0, dollar));
    if (dollar == std::string_view::npos) return;
    text.remove_prefix(dollar);
    std::size_t used = 1;
    if (text.starts_with("$$")) {
      plain("$");
      used = 2;
    } else if (const auto found = placeholder_at(text)) {
      named(text.substr(0, found->length), found->name);
      used = found->length;
    } else {
      plain("$");
    }
    text.remove_prefix(used);
  }
}

}  // namespace

LinePrefix::LinePrefix(std::string_view text, const LinePrefixValues& values) : rank_(values.rank) {
  scan(
      text, [&](std::string_view plain) { add_text(plain); },
      [&](std::string_view whole, std::string_view name) {
        if (name == kTime) {
          parts_.push_back({.is_time = true, .text = {}});
        } else {
          add_text(value_of(name, values).value_or(std::string(whole)));
        }
      });
}

void LinePrefix::add_text(std::string_view text) {
  if (text.empty()) return;
  if (parts_.empty() || parts_.back().is_time) parts_.emplace_back();
  parts_.back().text += text;
}

std::string LinePrefix::text(std::chrono::system_clock::time_point when) const {
  std::string result;
  for (const Part& part : parts_) result += part.is_time ? clock_time(when) : part.text;
  return result;
}

std::string LinePrefix::coloured(std::chrono::system_clock::time_point when) const {
  // Readable on light and dark backgrounds; red is left to errors.
  constexpr std::array<int, 6> kColours = {36, 33, 32, 35, 34, 96};
  const auto index = static_cast<std::size_t>(rank_ < 0 ? 0 : rank_) % kColours.size();
  return concat("\033[", kColours[index], "m", text(when), "\033[0m");
}

void check_line_prefix(std::string_view option, std::string_view text) {
  const LinePrefixValues values;
  scan(
      text, [](std::string_view) {},
      [&](std::string_view whole, std::string_view name) {
        if (name == kTime || value_of(name, values)) return;
        throw InvalidArgument(
            concat(option, ": '", whole, "' in '", text,
                   "' is not known; known are role_name, rank, local_rank, node_rank, host, epoch, "
                   "restart_count, stream and time; write $$ for a dollar sign"));
      });
}

bool shows_colours(int fd, const Environment& environment) {
  if (::isatty(fd) == 0) return false;
  if (!environment.get("NO_COLOR").value_or("").empty()) return false;
  const std::string terminal = environment.get("TERM").value_or("");
  return !terminal.empty() && terminal != "dumb";
}

}  // namespace lockstep
