#include "core/command_manual.h"

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kHelpWidth = 96;

// Breaks at blanks; the first line begins at `column`, where the others are indented to.
std::string broken_into_lines(std::string_view text, std::size_t column) {
  std::string result;
  std::size_t at = column;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (at > column && at + 1 + word.size() > kHelpWidth) {
      result += concat("\n", std::string(column, ' '));
      at = column;
    }
    if (at > column) {
      result += ' ';
      ++at;
    }
    result += word;
    at += word.size();
  }
  return result + "\n";
}

}  // namespace

std::string help_of(const CommandManual& manual) {
  std::size_t widest = 0;
  for (const CommandWord& word : manual.words) widest = std::max(widest, word.term.size());
  std::string text = concat("usage: lockstep ", manual.name, " ", manual.arguments, "\n\n",
                            broken_into_lines(manual.summary, 0), "\n");
  for (const CommandWord& word : manual.words) {
    std::string term = concat("  ", word.term);
    term.resize(widest + 4, ' ');
    text += term + broken_into_lines(word.help, term.size());
  }
  if (!manual.remarks.empty()) text += "\n" + broken_into_lines(manual.remarks, 0);
  return text;
}

std::string completion_words(const CommandManual& manual) {
  std::string words;
  for (const CommandWord& word : manual.words) {
    std::string_view name = word.term.substr(0, word.term.find(' '));
    if (name.ends_with(',')) name = word.term.substr(name.size() + 1);  // "-h, --help"
    if (const auto equals = name.find('='); equals != name.npos) name = name.substr(0, equals + 1);
    words += concat(words.empty() ? "" : " ", name);
  }
  return words;
}

}  // namespace lockstep
