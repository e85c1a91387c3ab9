#include "text/json_fields.h"

#include "lockstep/error.h"
#include "text/tokenizer_spec.h"

namespace lockstep {

using nlohmann::json;

json parse_json(const std::string& text, const std::string& file) {
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw InvalidArgument(
        concat("'", file, "' is not JSON: wrong at byte ", error.byte, " of ", text.size()));
  } catch (const json::out_of_range&) {
    throw InvalidArgument(concat("'", file, "' has a number that is too large"));
  }
}

JsonFields::JsonFields(const json& value, const std::string& file, std::string place)
    : value_(value), file_(file), place_(std::move(place)) {
  if (!value_.is_object()) refuse("is not an object");
}

void JsonFields::refuse(const std::string& what) const {
  throw InvalidArgument(concat("'", file_, "': ", place_, " ", what));
}

const json* JsonFields::find(const char* name) const {
  const auto found = value_.find(name);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

const json& JsonFields::need(const char* name) const {
  const json* found = find(name);
  if (found == nullptr) refuse(concat("has no field '", name, "'"));
  return *found;
}

std::string JsonFields::string(const char* name) const {
  const json& found = need(name);
  if (!found.is_string()) refuse(concat("has a field '", name, "' that is not a text"));
  return found.get<std::string>();
}

std::string JsonFields::string(const char* name, const std::string& otherwise) const {
  return find(name) == nullptr ? otherwise : string(name);
}

bool JsonFields::flag(const char* name, bool otherwise) const {
  const json* found = find(name);
  if (found == nullptr) return otherwise;
  if (!found->is_boolean()) refuse(concat("has a field '", name, "' that is not true or false"));
  return found->get<bool>();
}

const json& JsonFields::object(const char* name) const {
  const json& found = need(name);
  if (!found.is_object()) refuse(concat("has a field '", name, "' that is not an object"));
  return found;
}

const json& JsonFields::array(const char* name) const {
  const json& found = need(name);
  if (!found.is_array()) refuse(concat("has a field '", name, "' that is not a list"));
  return found;
}

std::int32_t JsonFields::id(const char* name) const {
  return as_id(need(name), name);
}

std::int32_t JsonFields::as_id(const json& value, const std::string& name) const {
  const bool whole = value.is_number_integer();
  const auto id = whole ? value.get<std::int64_t>() : -1;
  if (!whole || id < 0 || id > kLargestTokenId) {
    refuse(concat("gives '", name, "' the id ",
                  value.dump(-1, ' ', true, json::error_handler_t::replace),
                  "; ids are whole numbers from 0 to ", kLargestTokenId));
  }
  return static_cast<std::int32_t>(id);
}

}  // namespace lockstep
