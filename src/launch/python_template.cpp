#include "launch/python_template.h"

namespace lockstep {
namespace {

bool starts_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool continues_name(char c) {
  return starts_name(c) || (c >= '0' && c <= '9');
}

// The name that begins at `start`; empty if none does.
std::string_view name_at(std::string_view text, std::size_t start) {
  if (start >= text.size() || !starts_name(text[start])) {
    return {};
  }
  std::size_t end = start + 1;
  while (end < text.size() && continues_name(text[end])) {
    ++end;
  }
  return text.substr(start, end - start);
}

}  // namespace

std::string substitute(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t dollar = text.find('$', at);
    result += text.substr(at, dollar - at);
    if (dollar == std::string_view::npos) {
      break;
    }
    if (dollar + 1 < text.size() && text[dollar + 1] == '$') {
      result += '$';
      at = dollar + 2;
      continue;
    }
    const bool braced = dollar + 1 < text.size() && text[dollar + 1] == '{';
    const std::string_view name = name_at(text, dollar + (braced ? 2 : 1));
    std::size_t end = dollar + (braced ? 2 : 1) + name.size();
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    if (name.empty() || !closed) {
      result += '$';
      at = dollar + 1;
      continue;
    }
    end += braced ? 1 : 0;
    const auto found = values.find(name);
    result +=
        found == values.end() ? text.substr(dollar, end - dollar) : std::string_view(found->second);
    at = end;
  }
  return result;
}

}  // namespace lockstep
