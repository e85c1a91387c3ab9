#include "launch/terminal_text.h"

namespace lockstep {
namespace {

constexpr char kEscape = '\x1b';

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

// Bytes of the UTF-8 character that `text` begins with; 0 if it begins with none.
std::size_t character_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xC2 && first < 0xE0 ? 2
                             : first >= 0xE0 && first < 0xF0 ? 3
                             : first >= 0xF0 && first < 0xF5 ? 4
                                                             : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!is_continuation(text[i])) return 0;
  }
  // U+0080 to U+009F are control characters too; one of them begins an escape sequence.
  const bool control = length == 2 && first == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0;
  return control ? 0 : length;
}

// Bytes of the escape sequence that `text` begins with. One that is cut off counts as far as it
// goes.
std::size_t escape_length(std::string_view text) {
  if (text.size() < 2) return text.size();
  if (text[1] == '[') {
    std::size_t end = 2;
    while (end < text.size() && (text[end] < '@' || text[end] > '~')) ++end;
    return end < text.size() ? end + 1 : end;
  }
  if (text[1] == ']') {  // a window title or a link; ends with BEL or ESC backslash
    for (std::size_t end = 2; end < text.size(); ++end) {
      if (text[end] == '\a') return end + 1;
      if (text[end] == kEscape) return end + 1 < text.size() ? end + 2 : end + 1;
    }
    return text.size();
  }
  return 2;
}

}  // namespace

std::string without_controls(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    std::size_t used = 1;
    if (text[0] == kEscape) {
      used = escape_length(text);
    } else if (text[0] == '\t') {
      result += "  ";
    } else if (static_cast<unsigned char>(text[0]) >= ' ' && text[0] != '\x7f') {
      const std::size_t length = character_length(text);
      if (length == 0) {
        result += '?';
      } else {
        result += text.substr(0, length);
        used = length;
      }
    }
    text.remove_prefix(used);
  }
  return result;
}

std::string_view final_state(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const auto last = line.rfind('\r');
  return last == std::string_view::npos ? line : line.substr(last + 1);
}

std::string clipped(std::string_view text, std::size_t bytes) {
  constexpr std::string_view kMark = "...";
  if (text.size() <= bytes) return std::string(text);
  std::size_t end = bytes > kMark.size() ? bytes - kMark.size() : 0;
  while (end > 0 && is_continuation(text[end])) --end;
  return std::string(text.substr(0, end)) + std::string(kMark);
}

}  // namespace lockstep
