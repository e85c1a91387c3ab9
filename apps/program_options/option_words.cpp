#include "program_options/option_words.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <optional>
#include <utility>

#include "lockstep/error.h"

namespace program_options {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

/// What a command understands.
struct Known {
  OptionTable table;
  unsigned command = 1;
};

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

// How many letters must be added, dropped or replaced to make one of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string without_dashes(std::string_view word) {
  return std::string(word.substr(word.starts_with("--") ? 2 : 1));
}

// `before` is what names begin with where they are written.
[[noreturn]] void refuse_unknown(const std::string& what, std::string_view name, const Known& known,
                                 const char* before = "") {
  const std::string nearest = nearest_name(known.table, name, known.command);
  throw InvalidArgument(concat(
      "there is no ", what, nearest.empty() ? "" : concat("; did you mean ", before, nearest, "?"),
      " (see --help)"));
}

// By its whole name, or as much of it as tells it apart.
const OptionSpec& long_option(const std::string& name, const Known& known) {
  if (const OptionSpec* option = find_option(known.table, name, known.command)) return *option;
  std::string prefix = name;
  for (char& letter : prefix) letter = letter == '_' ? '-' : letter;
  const OptionSpec* found = nullptr;
  for (const OptionSpec& option : known.table) {
    if (!option.is_known_to(known.command) || !option.name.starts_with(prefix)) continue;
    if (found != nullptr) {
      throw InvalidArgument(concat("--", name, " can mean --", found->name, " or --", option.name));
    }
    found = &option;
  }
  if (found == nullptr) refuse_unknown(concat("option --", name), name, known, "--");
  return *found;
}

/// Goes through the words of a command line.
class Words {
 public:
  explicit Words(const std::vector<std::string>& words) : words_(words) {}

  bool done() const { return next_ == words_.size(); }
  const std::string& take() { return words_[next_++]; }

  /// The value of an option: what followed '=' in its own word, or the next word.
  std::string value(const std::string& option, const std::optional<std::string>& attached,
                    std::string_view what) {
    if (attached) return *attached;
    if (done()) throw InvalidArgument(concat(option, " needs a value: ", what));
    return take();
  }

 private:
  const std::vector<std::string>& words_;
  std::size_t next_ = 0;
};

void take_option(const OptionSpec& option, const std::string& spelled,
                 const std::optional<std::string>& attached, Words& words, Given& given) {
  const std::string name(option.name);
  if (option.is_switch()) {
    given.values[name] =
        attached ? checked_value(option, spelled, *attached) : nlohmann::json(true);
    return;
  }
  given.values[name] = checked_value(option, spelled, words.value(spelled, attached, option.value));
}

void take_long(const std::string& word, const Known& known, Words& words, Given& given) {
  const std::size_t equals = word.find('=');
  const std::string name = without_dashes(word.substr(0, equals));
  std::optional<std::string> attached;
  if (equals != std::string::npos) attached = word.substr(equals + 1);
  if (name == "help") {
    given.help = true;
  } else if (name == "config") {
    given.config_file = words.value("--config", attached, "FILE");
  } else {
    const OptionSpec& option = long_option(name, known);
    take_option(option, concat("--", option.name), attached, words, given);
  }
}

// "-b 8", "-b8" and "-b=8".
void take_short(const std::string& word, const Known& known, Words& words, Given& given) {
  if (word == "-h") {
    given.help = true;
    return;
  }
  for (const OptionSpec& option : known.table) {
    if (option.letter == 0 || option.letter != word[1] || !option.is_known_to(known.command))
      continue;
    std::optional<std::string> attached;
    if (word.size() > 2) attached = word.substr(word[2] == '=' ? 3 : 2);
    return take_option(option, word.substr(0, 2), attached, words, given);
  }
  refuse_unknown(concat("option ", word), without_dashes(word), known);
}

}  // namespace

const OptionSpec* find_option(OptionTable table, std::string_view name, unsigned command) {
  const std::string wanted = with_dashes(name);
  for (const OptionSpec& option : table) {
    if (option.name == wanted && option.is_known_to(command)) return &option;
  }
  return nullptr;
}

std::string nearest_name(OptionTable table, std::string_view name, unsigned command) {
  const std::string wanted = with_dashes(name);
  std::string best;
  std::size_t least = wanted.size() / 3 + 2;  // further away than this it is a guess
  for (const OptionSpec& option : table) {
    if (!option.is_known_to(command)) continue;
    const std::size_t distance = edit_distance(wanted, option.name);
    if (distance < least) {
      least = distance;
      best = option.name;
    }
  }
  return best;
}

Given read_words(const std::vector<std::string>& arguments, OptionTable table, unsigned command) {
  const Known known{.table = table, .command = command};
  Given given;
  Words words(arguments);
  while (!words.done()) {
    const std::string word = words.take();
    if (word == "--") {
      while (!words.done()) given.positionals.push_back(words.take());
    } else if (word.starts_with("--") && word.size() > 2) {
      take_long(word, known, words, given);
    } else if (word.starts_with("-") && word.size() > 1) {
      take_short(word, known, words, given);
    } else {
      given.positionals.push_back(word);
    }
  }
  return given;
}

Values read_config(const std::string& path, OptionTable table, unsigned command) {
  const Known known{.table = table, .command = command};
  std::ifstream file(path);
  if (!file) lockstep::throw_errno(concat("--config: cannot open ", path));
  nlohmann::json content;
  try {
    content = nlohmann::json::parse(file);
  } catch (const nlohmann::json::parse_error& error) {
    // After the library's own name for it.
    const std::string text = lockstep::first_line(error.what());
    const std::size_t begin = text.find("] ");
    throw InvalidArgument(
        concat(path, " is no JSON: ", begin == text.npos ? text : text.substr(begin + 2)));
  }
  if (!content.is_object()) {
    throw InvalidArgument(concat(path, " holds no JSON object {\"lr\": ...}"));
  }
  Values values;
  for (const auto& [key, value] : content.items()) {
    const OptionSpec* option = find_option(known.table, key, known.command);
    if (option == nullptr)
      refuse_unknown(concat("option '", key, "', which ", path, " sets"), key, known);
    values[std::string(option->name)] =
        checked_value(*option, concat(path, ": ", option->name), value);
  }
  return values;
}

}  // namespace program_options
