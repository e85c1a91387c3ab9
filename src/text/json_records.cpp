// Records in JSON: a list of objects, or an object a line.
#include <exception>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "text/files.h"
#include "text/record_fields.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Of fields that are objects, the names of what is in them.
std::vector<std::string> field_names_of(const json& value) {
  std::vector<std::string> names;
  for (const auto& [name, field] : value.items()) {
    if (!field.is_object() || field.empty()) names.push_back(name);
    if (!field.is_object()) continue;
    for (const auto& [inner, ignored] : field.items()) names.push_back(concat(name, ".", inner));
  }
  return names;
}

// nullptr where it is missing or null. "a.b" is also the field b of an object a.
const json* find_field(const json& value, const std::string& name) {
  if (const auto found = value.find(name); found != value.end()) {
    return found->is_null() ? nullptr : &*found;
  }
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) return nullptr;
  const auto outer = value.find(name.substr(0, dot));
  if (outer == value.end() || !outer->is_object()) return nullptr;
  const auto inner = outer->find(name.substr(dot + 1));
  return inner == outer->end() || inner->is_null() ? nullptr : &*inner;
}

TextRecord record_of(const json& value, RecordFields& fields, const RecordPlace& place) {
  if (!value.is_object()) {
    throw InvalidArgument(concat(place.text(), " is ", value.type_name(), " and not an object"));
  }
  if (!fields.chosen()) fields.choose(field_names_of(value), place);
  TextRecord record;
  for (const RecordFields::Field& field : fields.fields()) {
    const json* found = find_field(value, field.name);
    if (found == nullptr) {
      if (field.needed) RecordFields::throw_missing(field.name, field_names_of(value), place);
      continue;
    }
    if (!found->is_string()) {
      throw InvalidArgument(concat(place.text(), " has a field '", field.name, "' of type ",
                                   found->type_name(), "; it must be a text"));
    }
    record.*field.member = found->get<std::string>();
  }
  fields.check_not_empty(record, place);
  return record;
}

// Takes the objects of a list one by one, so that a large file is never in memory as a whole.
void read_list(std::string_view text, const std::string& path, RecordFields& fields,
               const TakeRecord& take) {
  std::int64_t number = 0;
  const auto on_event = [&](int depth, json::parse_event_t event, json& value) {
    const bool element = depth == 1 && (event == json::parse_event_t::object_end ||
                                        event == json::parse_event_t::array_end ||
                                        event == json::parse_event_t::value);
    if (!element) return true;
    ++number;
    take(record_of(value, fields, {path, number}));
    return false;  // it is not needed any more
  };
  try {
    const json ignored = json::parse(text.begin(), text.end(), on_event);
  } catch (const json::parse_error& error) {
    throw InvalidArgument(concat("'", path, "': record ", number + 1,
                                 " is not JSON, or the file was cut short: wrong at byte ",
                                 error.byte, " of ", text.size()));
  } catch (const json::out_of_range&) {
    throw InvalidArgument(concat(RecordPlace{path, number + 1}.text(), " has a number too large"));
  }
}

void read_lines(std::string_view text, const std::string& path, RecordFields& fields,
                const TakeRecord& take) {
  std::int64_t line_number = 0;
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    ++number;
    json value;
    try {
      value = json::parse(line.begin(), line.end());
    } catch (const json::parse_error& error) {
      throw InvalidArgument(concat("'", path, "': record ", number, " (line ", line_number,
                                   ") is not JSON: wrong at byte ", error.byte, " of ",
                                   line.size()));
    } catch (const json::out_of_range&) {
      throw InvalidArgument(concat(RecordPlace{path, number}.text(), " has a number too large"));
    }
    take(record_of(value, fields, {path, number}));
  }
}

}  // namespace

void parse_json_records(std::string_view text, const std::string& path, RecordFields& fields,
                        const TakeRecord& take) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return;
  if (text[first] == '[') {
    read_list(text, path, fields, take);
  } else if (text[first] == '{') {
    read_lines(text, path, fields, take);
  } else {
    throw InvalidArgument(concat("'", path,
                                 "' is neither a JSON list of records nor an object a line: it "
                                 "begins with '",
                                 text[first], "'"));
  }
}

void read_json_records(const std::string& path, RecordFields& fields, const TakeRecord& take) {
  const MappedFile file(path);
  parse_json_records(file.text(), path, fields, take);
}

}  // namespace lockstep
