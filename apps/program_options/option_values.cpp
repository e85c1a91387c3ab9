// Values of options: from words and from JSON, with their limits.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "lockstep/error.h"
#include "program_options/option_spec.h"

namespace program_options {
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
  return option.field.kind() == OptionField::Kind::whole;
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

// Calls `use` with the member as what it is.
template <typename Use>
auto with_member(const void* options, const OptionSpec& option, const Use& use) {
  void* member = const_cast<void*>(option.field.in(options));
  switch (option.field.kind()) {
    case OptionField::Kind::text:
      return use(*static_cast<std::string*>(member));
    case OptionField::Kind::whole:
      return use(*static_cast<std::int64_t*>(member));
    case OptionField::Kind::number:
      return use(*static_cast<double*>(member));
    case OptionField::Kind::toggle:
      break;
  }
  return use(*static_cast<bool*>(member));
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
  if (option.field.kind() == OptionField::Kind::number) {
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
  if (option.field.kind() == OptionField::Kind::text) {
    if (value.is_string()) return among_choices(option, source, value.get<std::string>());
    throw InvalidArgument(concat(source, " is ", value.dump(), "; it must be a string"));
  }
  bool fits = is_whole(option) ? value.is_number_integer() : value.is_number();
  if (value.is_number_unsigned()) fits = fits && value.get<std::uint64_t>() <= INT64_MAX;
  if (!fits) refuse(option, source, value.dump());
  return in_range(option, source, value, value.dump());
}

void set_field(void* options, const OptionSpec& option, const nlohmann::json& value) {
  with_member(options, option, [&](auto& member) { value.get_to(member); });
}

nlohmann::json get_field(const void* options, const OptionSpec& option) {
  return with_member(options, option, [](const auto& member) -> nlohmann::json { return member; });
}

}  // namespace program_options
