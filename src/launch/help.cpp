#include "launch/help.h"

#include "launch/manual_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kWidth = 96;
constexpr std::size_t kColumn = 34;  // where explanations begin

// A term, and beside it, or below where the term is long, what it means.
std::string entry(std::string_view term, std::string_view text) {
  const std::string left = concat("  ", term);
  std::string right = wrap(text, kColumn, kWidth);
  if (left.size() + 2 > kColumn) {
    return concat(left, "\n", right);
  }
  return right.replace(0, left.size(), left);
}

std::string option_entry(const Option& option) {
  const std::string more = remarks(option);
  return entry(spelled(option), concat(option.help, more.empty() ? "" : concat(" (", more, ")")));
}

}  // namespace

std::string help_text(LaunchCommand command) {
  std::string text =
      concat("Usage: ", to_string(command), " [OPTIONS] SCRIPT [ARGUMENTS]\n\n",
             wrap(description(command), 0, kWidth), "\n", wrap(program_rules(), 0, kWidth), "\n",
             wrap(spelling_rules(), 0, kWidth));
  const Option* previous = nullptr;
  for (const Option& option : all_options()) {
    if (!option.belongs_to(command)) {
      continue;
    }
    if (previous == nullptr || previous->group != option.group) {
      text += concat("\n", heading(option.group), ":\n");
    }
    text += option_entry(option);
    previous = &option;
  }
  text += "\nOther variables:\n";
  for (const Entry& variable : launcher_variables()) {
    text += entry(variable.term, variable.text);
  }
  text += "\nExit status:\n";
  for (const Entry& status : exit_statuses()) {
    text += entry(status.term, status.text);
  }
  text += "\nExamples:\n";
  for (const Entry& example : examples()) {
    text += concat("  ", example.term, "\n      ", example.text, "\n");
  }
  return text;
}

}  // namespace lockstep
