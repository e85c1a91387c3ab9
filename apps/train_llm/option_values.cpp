// Values of options: from words and from JSON, with their limits.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "lockstep/error.h"
#include "option_table.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

template <typename Number>
bool parse_all(const std::string& word, Number& number) {
  const char* end = word.data() + word.size();
  const auto [stopped, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && stopped == end;
}

bool is_whole(const OptionSpec& option) {
  return std::holds_alternative<std::int64_t Options::*>(option.field);
}

std::string bound(double value) {
  return value == std::floor(value) && std::fabs(value) < 1e17
             ? concat(static_cast<std::int64_t>(value))
             : concat(value);
}

std::string rule(const OptionSpec& option) {
  const char* kind = is_whole(option) ? "a whole number" : "a number";
  const bool has_lowest = std::isfinite(option.lowest), has_highest = std::isfinite(option.highest);
  std::string text = concat("it must be ", kind);
  if (has_lowest) {
    text += concat(option.above_lowest ? " above " : " of at least ", bound(option.lowest));
  }
  if (has_highest) text += concat(has_lowest ? " and" : "", " at most ", bound(option.highest));
  return text;
}

[[noreturn]] void refuse(const OptionSpec& option, const std::string& source,
                         const std::string& given) {
  throw InvalidArgument(concat(source, " is ", given, "; ", rule(option)));
}

nlohmann::json in_range(const OptionSpec& option, const std::string& source,
                        const nlohmann::json& value, const std::string& given) {
  const auto number = value.get<double>();
  const bool low = option.above_lowest ? !(number > option.lowest) : !(number >= option.lowest);
  if (low || !(number <= option.highest) || !std::isfinite(number)) refuse(option, source, given);
  return value;
}

nlohmann::json among_choices(const OptionSpec& option, const std::string& source,
                             const std::string& word) {
  if (option.choices.empty()) return word;
  std::string list;
  for (std::size_t begin = 0; begin <= option.choices.size();) {
    const std::size_t end = std::min(option.choices.find('|', begin), option.choices.size());
    const std::string_view choice = option.choices.substr(begin, end - begin);
    if (word == choice) return word;
    list += concat(list.empty() ? "" : ", ", choice);
    begin = end + 1;
  }
  throw InvalidArgument(concat(source, " is \"", word, "\"; it must be one of ", list));
}

}  // namespace

nlohmann::json checked_value(const OptionSpec& option, const std::string& source,
                             const std::string& word) {
  const std::string given = concat("\"", word, "\"");
  if (is_whole(option)) {
    std::int64_t number = 0;
    if (!parse_all(word, number)) refuse(option, source, given);
    return in_range(option, source, number, given);
  }
  if (std::holds_alternative<double Options::*>(option.field)) {
    double number = 0;
    if (!parse_all(word, number)) refuse(option, source, given);
    return in_range(option, source, number, given);
  }
  if (option.is_switch()) {
    if (word == "true" || word == "false") return word == "true";
    throw InvalidArgument(concat(source, " is ", given, "; it must be true or false"));
  }
  return among_choices(option, source, word);
}

nlohmann::json checked_value(const OptionSpec& option, const std::string& source,
                             const nlohmann::json& value) {
  if (option.is_switch()) {
    if (value.is_boolean()) return value;
    throw InvalidArgument(concat(source, " is ", value.dump(), "; it must be true or false"));
  }
  if (std::holds_alternative<std::string Options::*>(option.field)) {
    if (value.is_string()) return among_choices(option, source, value.get<std::string>());
    throw InvalidArgument(concat(source, " is ", value.dump(), "; it must be a string"));
  }
  bool fits = is_whole(option) ? value.is_number_integer() : value.is_number();
  if (value.is_number_unsigned()) fits = fits && value.get<std::uint64_t>() <= INT64_MAX;
  if (!fits) refuse(option, source, value.dump());
  return in_range(option, source, value, value.dump());
}

void set_option(Options& options, const OptionSpec& option, const nlohmann::json& value) {
  std::visit([&](auto field) { value.get_to(options.*field); }, option.field);
}

nlohmann::json get_option(const Options& options, const OptionSpec& option) {
  return std::visit([&](auto field) -> nlohmann::json { return options.*field; }, option.field);
}

}  // namespace train_llm
