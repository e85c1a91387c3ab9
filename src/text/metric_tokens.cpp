#include "text/metric_tokens.h"

#include <cstdint>

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

constexpr char32_t kFirstBeyondUnicode = 0x110000;

bool is_digit_13a(char letter) {
  return letter >= '0' && letter <= '9';
}

bool is_stop(char letter) {
  return letter == '.' || letter == ',';
}

// ASCII's punctuation but for ' , - and . which are looked at by their neighbours.
bool stands_alone(char letter) {
  const bool punctuation = (letter >= '!' && letter <= '/') || (letter >= ':' && letter <= '@') ||
                           (letter >= '[' && letter <= '`') || (letter >= '{' && letter <= '~');
  return punctuation && letter != '\'' && letter != '-' && !is_stop(letter);
}

void replace_everywhere(std::string& text, std::string_view what, std::string_view by) {
  for (std::size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

// Each step below looks at the text from left to right, and at no character twice.

std::string apart_by_kind(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    if (stands_alone(letter)) {
      out.append(1, ' ').append(1, letter).append(1, ' ');
    } else {
      out += letter;
    }
  }
  return out;
}

// A stop is set apart unless a digit stands before it.
std::string apart_after_others(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (is_digit_13a(text[i]) || i + 1 == text.size() || !is_stop(text[i + 1])) continue;
    out.append(1, ' ').append(1, text[++i]).append(1, ' ');
  }
  return out;
}

// And unless a digit stands after it.
std::string apart_before_others(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_stop(text[i]) || i + 1 == text.size() || is_digit_13a(text[i + 1])) {
      out += text[i];
      continue;
    }
    out.append(1, ' ').append(1, text[i]).append(1, ' ');
    out += text[++i];
  }
  return out;
}

// A dash is set apart where a digit stands before it.
std::string apart_after_digits(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    if (!is_digit_13a(text[i]) || i + 1 == text.size() || text[i + 1] != '-') continue;
    ++i;
    out += " - ";
  }
  return out;
}

std::string_view without_trailing_space(std::string_view text) {
  std::size_t end = 0;
  const unsigned char* const data = bytes_of(text);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = decode_utf8(data + at, data + text.size());
    at += found.bytes == 0 ? 1 : found.bytes;
    if (found.bytes == 0 || !is_python_space(found.code)) end = at;
  }
  return text.substr(0, end);
}

}  // namespace

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  const unsigned char* const data = bytes_of(text);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = decode_utf8(data + at, data + text.size());
    characters += found.bytes == 0 ? kFirstBeyondUnicode + data[at] : char32_t{found.code};
    at += found.bytes == 0 ? 1 : found.bytes;
  }
  return characters;
}

bool is_python_space(char32_t character) {
  if (character >= kFirstBeyondUnicode) return false;
  const bool separator = character >= 0x1c && character <= 0x1f;  // of files, groups, records
  return separator || CharClasses::get().of(character) == CharClass::space;
}

std::vector<std::string> space_separated(std::string_view text) {
  std::vector<std::string> words;
  bool open = false;
  const unsigned char* const data = bytes_of(text);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char found = decode_utf8(data + at, data + text.size());
    const std::size_t bytes = found.bytes == 0 ? 1 : found.bytes;
    const bool space = found.bytes != 0 && is_python_space(found.code);
    if (!space && !open) words.emplace_back();
    if (!space) words.back().append(text.substr(at, bytes));
    open = !space;
    at += bytes;
  }
  return words;
}

std::vector<std::string> tokens_13a(std::string_view text) {
  std::string line(without_trailing_space(text));
  replace_everywhere(line, "<skipped>", "");
  replace_everywhere(line, "-\n", "");
  replace_everywhere(line, "\n", " ");
  replace_everywhere(line, "&quot;", "\"");
  replace_everywhere(line, "&amp;", "&");
  replace_everywhere(line, "&lt;", "<");
  replace_everywhere(line, "&gt;", ">");
  // The spaces around it are neighbours for the first and the last character.
  line = apart_by_kind(" " + line + " ");
  line = apart_after_digits(apart_before_others(apart_after_others(line)));
  return space_separated(line);
}

}  // namespace lockstep
