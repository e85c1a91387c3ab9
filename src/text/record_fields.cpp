#include "text/record_fields.h"

#include <algorithm>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace

std::string RecordPlace::text() const {
  return concat("'", file, "': record ", number);
}

void RecordFields::throw_missing(const std::string& field, const std::vector<std::string>& names,
                                 const RecordPlace& place) {
  throw InvalidArgument(
      concat(place.text(), " has no field '", field, "' (it has: ", listed(names), ")"));
}

const std::vector<RecordFields::Field>& RecordFields::choose(const std::vector<std::string>& names,
                                                             const RecordPlace& place) {
  if (chosen()) return fields_;
  if (!ways_.empty()) {
    choose_way(names, place);
    return fields_;
  }
  const auto has = [&names](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  using Kind = TextSourceOptions::Kind;
  Kind kind = options_.kind;
  if (kind == Kind::automatic) {
    const bool instruction = has(options_.instruction_field) && has(options_.output_field);
    if (!instruction && !has(options_.text_field)) {
      throw InvalidArgument(concat(place.text(), " has neither the fields '",
                                   options_.instruction_field, "' and '", options_.output_field,
                                   "' nor '", options_.text_field, "' (it has: ", listed(names),
                                   ")"));
    }
    kind = instruction ? Kind::instruction : Kind::text;
  }
  if (kind == Kind::text) {
    fields_ = {{options_.text_field, &TextRecord::text, true}};
  } else {
    fields_ = {{options_.instruction_field, &TextRecord::instruction, true},
               {options_.input_field, &TextRecord::input, false},
               {options_.output_field, &TextRecord::output, true}};
  }
  return fields_;
}

void RecordFields::choose_way(const std::vector<std::string>& names, const RecordPlace& place) {
  // Where none fits, the message is about the way that comes nearest.
  std::size_t most = 0;
  const Field* missing = &ways_.front().front();
  for (const std::vector<Field>& way : ways_) {
    std::size_t present = 0;
    const Field* first_missing = nullptr;
    for (const Field& field : way) {
      const bool has = std::find(names.begin(), names.end(), field.name) != names.end();
      present += has ? 1 : 0;
      if (!has && first_missing == nullptr) first_missing = &field;
    }
    if (first_missing == nullptr) {
      fields_ = way;
      return;
    }
    if (present > most) {
      most = present;
      missing = first_missing;
    }
  }
  throw_missing(missing->name, names, place);
}

void RecordFields::check_not_empty(const TextRecord& record, const RecordPlace& place) const {
  if (!ways_.empty()) return;
  if (record.text.empty() && record.output.empty() && record.instruction.empty()) {
    throw InvalidArgument(concat(place.text(), " is empty"));
  }
}

}  // namespace lockstep
