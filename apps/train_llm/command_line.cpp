#include "command_line.h"

#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/error.h"
#include "lockstep/tracker.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

using Values = std::map<std::string, nlohmann::json, std::less<>>;  // by the option's name

struct Given {
  Values values;
  std::string config_file;
  std::vector<std::string> positionals;
  bool help = false;
};

// Learned by trying: see docs/train_llm.md.
const Values& embedded_defaults() {
  static const Values values = {{"model", "tiny"},
                                {"n-layer", 2},
                                {"n-embd", 96},
                                {"n-head", 4},
                                {"dtype", "fp32"},
                                {"seq-length", 20},
                                {"packing", "single"},
                                {"template", "brief"},
                                {"loss-on-answers", true},
                                {"vocab-size", 320},
                                {"batch-size", 16},
                                {"num-epochs", 1000},
                                {"max-steps", 3200},
                                {"lr", 2e-3},
                                {"schedule-steps", 0},
                                {"warmup", 50},
                                {"min-lr-factor", 0.05},
                                {"weight-decay", 0.1},
                                {"decay-matrices-only", true},
                                {"beta2", 0.95},
                                {"grad-clip", 1.0},
                                {"log-freq", 200},
                                {"ckpt-freq", 800},
                                {"eval-fraction", 0.02},
                                {"eval-freq", 800}};
  return values;
}

std::string without_dashes(std::string_view word) {
  return std::string(word.substr(word.starts_with("--") ? 2 : 1));
}

[[noreturn]] void refuse_unknown(const std::string& what, std::string_view name, Command command) {
  const std::string nearest = nearest_name(name, command);
  throw InvalidArgument(concat("there is no ", what,
                               nearest.empty() ? "" : concat("; did you mean ", nearest, "?"),
                               " (see --help)"));
}

// By its whole name, or as much of it as tells it apart.
const OptionSpec& long_option(const std::string& name, Command command) {
  if (const OptionSpec* option = find_option(name, command)) return *option;
  std::string prefix = name;
  for (char& letter : prefix) letter = letter == '_' ? '-' : letter;
  const OptionSpec* found = nullptr;
  for (const OptionSpec& option : all_options()) {
    if (!option.is_known_to(command) || !option.name.starts_with(prefix)) continue;
    if (found != nullptr) {
      throw InvalidArgument(concat("--", name, " can mean --", found->name, " or --", option.name));
    }
    found = &option;
  }
  if (found == nullptr) refuse_unknown(concat("option --", name), name, command);
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

void take_long(const std::string& word, Command command, Words& words, Given& given) {
  const std::size_t equals = word.find('=');
  const std::string name = without_dashes(word.substr(0, equals));
  std::optional<std::string> attached;
  if (equals != std::string::npos) attached = word.substr(equals + 1);
  if (name == "help") {
    given.help = true;
  } else if (name == "config") {
    given.config_file = words.value("--config", attached, "FILE");
  } else {
    const OptionSpec& option = long_option(name, command);
    take_option(option, concat("--", option.name), attached, words, given);
  }
}

// "-b 8", "-b8" and "-b=8".
void take_short(const std::string& word, Command command, Words& words, Given& given) {
  if (word == "-h") {
    given.help = true;
    return;
  }
  for (const OptionSpec& option : all_options()) {
    if (option.letter == 0 || option.letter != word[1] || !option.is_known_to(command)) continue;
    std::optional<std::string> attached;
    if (word.size() > 2) attached = word.substr(word[2] == '=' ? 3 : 2);
    return take_option(option, word.substr(0, 2), attached, words, given);
  }
  refuse_unknown(concat("option ", word), without_dashes(word), command);
}

Given read_words(const std::vector<std::string>& arguments, Command command) {
  Given given;
  Words words(arguments);
  while (!words.done()) {
    const std::string word = words.take();
    if (word.starts_with("--") && word.size() > 2) {
      take_long(word, command, words, given);
    } else if (word.starts_with("-") && word.size() > 1) {
      take_short(word, command, words, given);
    } else {
      given.positionals.push_back(word);
    }
  }
  return given;
}

Values read_config(const std::string& path, Command command) {
  std::ifstream file(path);
  if (!file) lockstep::throw_errno(concat("--config: cannot open ", path));
  nlohmann::json content;
  try {
    content = nlohmann::json::parse(file);
  } catch (const nlohmann::json::parse_error& error) {
    throw InvalidArgument(
        concat("--config: ", path, " is no JSON: ", lockstep::first_line(error.what())));
  }
  if (!content.is_object()) {
    throw InvalidArgument(concat("--config: ", path, " holds no JSON object {\"lr\": ...}"));
  }
  Values values;
  for (const auto& [key, value] : content.items()) {
    const OptionSpec* option = find_option(key, command);
    if (option == nullptr)
      refuse_unknown(concat("option '", key, "', which ", path, " sets"), key, command);
    values[std::string(option->name)] =
        checked_value(*option, concat(path, ": ", option->name), value);
  }
  return values;
}

void apply(Options& options, const Values& values, Command command) {
  for (const auto& [name, value] : values) set_option(options, *find_option(name, command), value);
}

void check_target(Invocation& invocation, const std::vector<std::string>& positionals) {
  const bool wants_target = invocation.command == Command::export_model;
  if (positionals.size() > (wants_target ? 1U : 0U)) {
    throw InvalidArgument(concat("\"", positionals.back(), "\" is one word too many (see --help)"));
  }
  if (!wants_target) return;
  if (positionals.empty()) {
    throw InvalidArgument("export needs the folder to write: train_llm export DIR");
  }
  invocation.target = positionals.front();
}

void check(const Options& options, Command command) {
  if (command == Command::generate) {
    if (options.prompt.empty() == options.instruction.empty()) {
      throw InvalidArgument("generate needs either --prompt or --instruction");
    }
    if (!options.input.empty() && options.instruction.empty()) {
      throw InvalidArgument("--input belongs to --instruction, which is not given");
    }
    return;
  }
  if (!options.model_name.empty() && !options.model.empty()) {
    throw InvalidArgument(
        "--model-name and --model are both given; the first trains what is there on, the second "
        "begins from scratch (as --model-name DIR --from-scratch does)");
  }
  if (options.from_scratch && options.model_name.empty()) {
    throw InvalidArgument("--from-scratch needs --model-name; without one all weights are new");
  }
  try {
    lockstep::TrackingOptions tracking;
    lockstep::choose_sinks(tracking, options.track);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--track is ", options.track, ": ", error.what()));
  }
  const bool falls = options.schedule == "cosine" || options.schedule == "linear";
  if (falls && options.schedule_steps != 0 && options.warmup >= options.schedule_steps) {
    throw InvalidArgument(concat("--warmup is ", options.warmup,
                                 ", but --schedule-steps, which includes it, is ",
                                 options.schedule_steps));
  }
}

}  // namespace

Invocation parse_command_line(const std::vector<std::string>& arguments) {
  Invocation invocation;
  std::vector<std::string> rest = arguments;
  if (!rest.empty() && (rest[0] == "generate" || rest[0] == "export" || rest[0] == "train")) {
    if (rest[0] == "generate") invocation.command = Command::generate;
    if (rest[0] == "export") invocation.command = Command::export_model;
    rest.erase(rest.begin());
  }
  const Given given = read_words(rest, invocation.command);
  invocation.help = given.help;
  if (given.help) return invocation;
  check_target(invocation, given.positionals);
  Values config;
  if (!given.config_file.empty()) config = read_config(given.config_file, invocation.command);

  const auto names = [&](std::string_view option) {
    return given.values.contains(option) ||
           (config.contains(option) && config.find(option)->second != "");
  };
  invocation.embedded = invocation.command == Command::train && !names("dataset-name") &&
                        !names("model-name") && !names("model");
  if (invocation.embedded) apply(invocation.options, embedded_defaults(), invocation.command);
  apply(invocation.options, config, invocation.command);
  apply(invocation.options, given.values, invocation.command);
  check(invocation.options, invocation.command);
  return invocation;
}

Options read_stored_options(const std::string& path) {
  Options options;
  apply(options, read_config(path, Command::train), Command::train);
  return options;
}

nlohmann::ordered_json effective_config(const Options& options) {
  nlohmann::ordered_json config;
  for (const OptionSpec& option : all_options()) {
    if (option.is_known_to(Command::train)) {
      config[std::string(option.name)] = get_option(options, option);
    }
  }
  return config;
}

}  // namespace train_llm
