#include "archive/state_file.h"

#include <cmath>
#include <limits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Moves what is not finite out of `value` into `found`, by its place.
void take_non_finite(json& value, const json::json_pointer& place, json& found) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    found[place.to_string()] = std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
    value = nullptr;
  } else if (value.is_object()) {
    for (auto& [key, child] : value.items()) take_non_finite(child, place / key, found);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) take_non_finite(value[i], place / i, found);
  } else if (value.is_binary()) {
    throw InvalidArgument(concat("the value at ", place.to_string(),
                                 " is binary; a snapshot holds such data as a tensor"));
  }
}

double parse_non_finite(const std::string& text) {
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw InvalidArgument(concat("state.json is damaged: '", text, "' is no number"));
}

}  // namespace

std::string format_state_file(const std::map<std::string, PartValues>& parts) {
  json file = {{"parts", json::object()}, {"non_finite", json::object()}};
  for (const auto& [name, part] : parts) {
    json values = part.values;
    take_non_finite(values, json::json_pointer() / name / "values", file["non_finite"]);
    file["parts"][name] = {{"values", std::move(values)}, {"tied", part.tied}};
  }
  try {
    return file.dump(1) + "\n";
  } catch (const json::exception& error) {
    throw InvalidArgument(concat("a value is not UTF-8: ", first_line(error.what())));
  }
}

std::map<std::string, PartValues> parse_state_file(std::string_view text) {
  try {
    json file = json::parse(text);
    for (const auto& [place, number] : file.at("non_finite").items()) {
      file.at("parts").at(json::json_pointer(place)) = parse_non_finite(number.get<std::string>());
    }
    std::map<std::string, PartValues> parts;
    for (auto& [name, part] : file.at("parts").items()) {
      parts[name] = {.values = std::move(part.at("values")),
                     .tied = part.at("tied").get<std::map<std::string, std::string>>()};
    }
    return parts;
  } catch (const json::exception& error) {
    throw InvalidArgument(concat("state.json is damaged: ", first_line(error.what())));
  }
}

}  // namespace lockstep
