#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <nlohmann/json.hpp>

namespace program_options {

/// A member of a program's struct of options: text, a whole number, a number or a switch.
class OptionField {
 public:
  enum class Kind { text, whole, number, toggle };

  template <typename Options, typename T>
  OptionField(T Options::*member)
      : kind_(std::is_same_v<T, std::string>    ? Kind::text
              : std::is_same_v<T, std::int64_t> ? Kind::whole
              : std::is_same_v<T, double>       ? Kind::number
                                                : Kind::toggle),
        address_([member](const void* options) -> const void* {
          return &(static_cast<const Options*>(options)->*member);
        }) {
    static_assert(std::is_same_v<T, std::string> || std::is_same_v<T, std::int64_t> ||
                  std::is_same_v<T, double> || std::is_same_v<T, bool>);
  }

  Kind kind() const { return kind_; }
  /// Where it is in these options.
  const void* in(const void* options) const { return address_(options); }

 private:
  Kind kind_;
  std::function<const void*(const void*)> address_;
};

/// One option: its name on the command line and in a configuration file, and where its value goes.
struct OptionSpec {
  std::string_view name;  // with dashes, without the two at the front
  char letter = 0;        // 0: none
  OptionField field;
  std::string_view value = {};  // what help calls its value; empty for a switch
  std::string_view help = {};
  std::string_view heading = {};  // of the options that begin here, in the help
  double lowest = -std::numeric_limits<double>::infinity();
  double highest = std::numeric_limits<double>::infinity();
  bool above_lowest = false;            // `lowest` itself is too low
  std::string_view choices = {};        // separated by '|'; empty: anything
  std::string_view shown_default = {};  // in the help, where the value itself says too little
  unsigned commands = 1;                // which commands know it, as bits; the first is the usual

  bool is_switch() const { return field.kind() == OptionField::Kind::toggle; }
  template <typename Command>
  bool is_known_to(Command command) const {
    return (commands & static_cast<unsigned>(command)) != 0;
  }
};

/// All options of a program, over one struct.
using OptionTable = std::span<const OptionSpec>;

/// By its name with dashes or underscores; null when there is none.
const OptionSpec* find_option(OptionTable table, std::string_view name, unsigned command);

/// The option whose name is most like this one; empty when none is near.
std::string nearest_name(OptionTable table, std::string_view name, unsigned command);

/// What a word of the command line means for an option, or the value in a configuration file, as
/// JSON of the option's type. `source` begins the message ("--lr" or "config.json: lr"). Throws
/// InvalidArgument for what is no such value or out of range.
nlohmann::json checked_value(const OptionSpec& option, const std::string& source,
                             const std::string& word);
nlohmann::json checked_value(const OptionSpec& option, const std::string& source,
                             const nlohmann::json& value);

void set_field(void* options, const OptionSpec& option, const nlohmann::json& value);
nlohmann::json get_field(const void* options, const OptionSpec& option);

/// `value` has been checked, and the option is one of this struct's.
template <typename Options>
void set_option(Options& options, const OptionSpec& option, const nlohmann::json& value) {
  set_field(&options, option, value);
}
template <typename Options>
nlohmann::json get_option(const Options& options, const OptionSpec& option) {
  return get_field(&options, option);
}

/// Every option that the command knows with its value.
template <typename Options>
nlohmann::ordered_json all_values(const Options& options, OptionTable table, unsigned command) {
  nlohmann::ordered_json values;
  for (const OptionSpec& option : table) {
    if (option.is_known_to(command)) values[std::string(option.name)] = get_option(options, option);
  }
  return values;
}

}  // namespace program_options
