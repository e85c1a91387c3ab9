#include "launch/argument_parser.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// One argument as argparse would see it: an option, perhaps with a value in the same argument.
struct OptionToken {
  const Option* option = nullptr;
  bool by_letter = false;
  std::optional<std::string> value;
};

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

const Option* by_letter(char letter) {
  for (const Option& option : all_options()) {
    if (option.letter != 0 && option.letter == letter) {
      return &option;
    }
  }
  return nullptr;
}

// -5, -.5, -1.5: a value, not an option.
bool is_negative_number(std::string_view argument) {
  const std::string_view number = argument.substr(1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const std::size_t point = number.find('.');
  const std::string_view before = number.substr(0, point);
  if (!std::ranges::all_of(before, is_digit)) {
    return false;
  }
  if (point == std::string_view::npos) {
    return !before.empty();
  }
  const std::string_view after = number.substr(point + 1);
  return !after.empty() && std::ranges::all_of(after, is_digit);
}

// How many letters must be added, dropped or replaced to make one of the other.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

class Parser {
 public:
  Parser(const std::vector<std::string>& arguments, LaunchCommand command)
      : arguments_(arguments), command_(command) {}

  ParsedArguments parse() {
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_];
      if (argument == "--") {
        take_program(next_ + 1);
        break;
      }
      const auto token = read_token(argument);
      if (!token) {
        take_program(next_);
        // argparse gives a "--" that follows the script at once to the script's own place.
        if (result_.program.size() > 1 && result_.program[1] == "--") {
          result_.program.erase(result_.program.begin() + 1);
        }
        break;
      }
      ++next_;
      if (take(*token)) {
        break;
      }
    }
    return std::move(result_);
  }

 private:
  void take_program(std::size_t first) {
    result_.program.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(first),
                           arguments_.end());
  }

  // What the argument is as an option; std::nullopt: it is none, but a value or the script.
  std::optional<OptionToken> read_token(const std::string& argument) const {
    if (argument.size() < 2 || argument[0] != '-') {
      return std::nullopt;
    }
    const std::size_t equals = argument.find('=');
    OptionToken token;
    if (equals != std::string::npos) {
      token.value = argument.substr(equals + 1);
    }
    if (argument[1] == '-') {
      const std::string name = with_dashes(argument.substr(2, equals - 2));
      const auto candidates = by_name(name);
      if (candidates.size() > 1) {
        reject_ambiguous(name, candidates);
      }
      token.option = candidates.empty() ? nullptr : candidates.front();
    } else {
      token.by_letter = true;
      token.option = by_letter(argument[1]);
      if (equals != 2) {
        token.value = argument.size() > 2 ? std::optional(argument.substr(2)) : std::nullopt;
      }
    }
    if (token.option != nullptr) {
      return token;
    }
    if (is_positional_despite_dash(argument)) {
      return std::nullopt;
    }
    reject_unknown(argument.substr(0, equals));
  }

  // Whether the argument can be the value of the option before it.
  bool is_value(const std::string& argument) const {
    if (argument.size() < 2 || argument[0] != '-') {
      return true;
    }
    const bool names_option =
        argument[1] == '-'
            ? !by_name(with_dashes(argument.substr(2, argument.find('=') - 2))).empty()
            : by_letter(argument[1]) != nullptr;
    return !names_option && argument != "--" && is_positional_despite_dash(argument);
  }

  static bool is_positional_despite_dash(std::string_view argument) {
    return is_negative_number(argument) || argument.find(' ') != std::string_view::npos;
  }

  // The option of that name, or those that begin with it.
  std::vector<const Option*> by_name(const std::string& name) const {
    std::vector<const Option*> theirs;
    std::vector<const Option*> ours;
    for (const Option& option : all_options()) {
      if (!option.belongs_to(command_) || !option.name.starts_with(name)) {
        continue;
      }
      if (option.name == name) {
        return {&option};
      }
      (option.origin == OptionOrigin::lockstep ? ours : theirs).push_back(&option);
    }
    return theirs.empty() ? ours : theirs;
  }

  [[noreturn]] static void reject_ambiguous(const std::string& name,
                                            const std::vector<const Option*>& candidates) {
    std::string names;
    for (const Option* option : candidates) {
      names += concat(names.empty() ? "" : ", ", "--", option->name);
    }
    throw InvalidArgument(concat("--", name, " is ambiguous: it could be ", names));
  }

  [[noreturn]] void reject_unknown(const std::string& spelled) const {
    if (with_dashes(spelled) == "--use-env") {
      throw InvalidArgument(
          "--use-env is for lockstep launch; lockstep run never adds --local-rank to arguments");
    }
    std::string message = concat("there is no option ", spelled);
    const std::string name = with_dashes(spelled);
    constexpr std::size_t kNear = 3;
    std::size_t nearest = kNear;
    std::string suggestion;
    for (const Option& option : all_options()) {
      const std::size_t distance = edit_distance(name, concat("--", option.name));
      // A short name is near to everything.
      if (option.belongs_to(command_) && distance < nearest && option.name.size() > distance + 2) {
        nearest = distance;
        suggestion = concat("; did you mean --", option.name, "?");
      }
    }
    if (suggestion.empty()) {
      suggestion = concat("; see ", to_string(command_), " --help");
    }
    throw InvalidArgument(message + suggestion);
  }

  // True at --help: nothing after it matters.
  bool take(OptionToken token) {
    while (!token.option->takes_value()) {
      result_.options.push_back({token.option, ""});
      if (token.option->flag == &RunOptions::help) {
        return true;
      }
      if (!token.value) {
        return false;
      }
      // -mr3 is -m -r3.
      const Option* next =
          token.by_letter && !token.value->empty() ? by_letter(token.value->front()) : nullptr;
      if (next == nullptr) {
        throw InvalidArgument(
            concat(spelled(token), " takes no value, but was given '", *token.value, "'"));
      }
      const std::string rest = token.value->substr(1);
      token = {next, true, rest.empty() ? std::nullopt : std::optional(rest)};
    }
    if (!token.value) {
      if (next_ >= arguments_.size() || !is_value(arguments_[next_])) {
        throw InvalidArgument(concat(spelled(token), " needs a value: ", spelled(token),
                                     token.by_letter ? " " : "=", token.option->placeholder));
      }
      token.value = arguments_[next_++];
    }
    result_.options.push_back({token.option, *token.value});
    return false;
  }

  static std::string spelled(const OptionToken& token) {
    return token.by_letter ? std::string{'-', token.option->letter}
                           : concat("--", token.option->name);
  }

  const std::vector<std::string>& arguments_;
  LaunchCommand command_;
  std::size_t next_ = 0;
  ParsedArguments result_;
};

}  // namespace

ParsedArguments parse_arguments(const std::vector<std::string>& arguments, LaunchCommand command) {
  return Parser(arguments, command).parse();
}

}  // namespace lockstep
