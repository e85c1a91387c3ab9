// What --help says about options.
#include <cstddef>
#include <sstream>

#include "lockstep/error.h"
#include "program_options/option_words.h"

namespace program_options {
namespace {

using lockstep::concat;

constexpr std::size_t kIndent = 28, kWidth = 100;

// Appends words, breaking lines before kWidth.
void wrap(std::string& text, std::string_view words, std::size_t column) {
  std::istringstream stream{std::string(words)};
  for (std::string word; stream >> word;) {
    if (column + 1 + word.size() > kWidth) {
      text += concat("\n", std::string(kIndent, ' '), word);
      column = kIndent + word.size();
    } else {
      const bool first = text.ends_with("  ");
      text += (first ? "" : " ") + word;
      column += word.size() + (first ? 0 : 1);
    }
  }
  text += "\n";
}

std::string default_of(const OptionSpec& option, const void* defaults) {
  if (option.is_switch()) return "";
  if (!option.shown_default.empty()) return concat("default: ", option.shown_default);
  const nlohmann::json value = get_field(defaults, option);
  if (value.is_string() && value.get<std::string>().empty()) return "";
  return concat("default ", value.is_string() ? value.get<std::string>() : value.dump());
}

void describe(std::string& text, const OptionSpec& option, const void* defaults) {
  std::string line = concat("  ", option.letter != 0 ? concat("-", option.letter, ", ") : "", "--",
                            option.name, option.value.empty() ? "" : " ", option.value);
  if (line.size() + 2 > kIndent) {
    text += line + "\n";
    line.clear();
  }
  line.resize(kIndent, ' ');
  text += line;
  const std::string value = default_of(option, defaults);
  wrap(text, concat(option.help, value.empty() ? "" : concat(" (", value, ")")), kIndent);
}

}  // namespace

std::string describe_options(OptionTable table, unsigned command, const void* defaults) {
  std::string text;
  std::string_view heading;
  for (const OptionSpec& option : table) {
    if (!option.heading.empty()) heading = option.heading;
    if (!option.is_known_to(command)) continue;
    if (!heading.empty()) text += concat("\n", heading, ":\n");
    heading = {};
    describe(text, option, defaults);
  }
  text += concat("\n  --config FILE             ");
  text += "options as JSON, {\"lr\": 1e-4, ...}; the command line counts more\n";
  text += "  -h, --help                this text\n";
  text += "\nNames may be written with '-' or '_', and cut short.\n";
  return text;
}

}  // namespace program_options
