#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace lockstep {

/// Throws InvalidArgument with the file and the place when the text is no JSON.
nlohmann::json parse_json(const std::string& text, const std::string& file);

/// Reads the fields of an object in a file that somebody else wrote. Everything throws
/// InvalidArgument with the file, the place of the object and the field.
class JsonFields {
 public:
  /// Keeps a reference to the value. `place`: "model".
  JsonFields(const nlohmann::json& value, const std::string& file, std::string place);

  const std::string& file() const { return file_; }

  /// nullptr where it is missing or null.
  const nlohmann::json* find(const char* name) const;

  std::string string(const char* name) const;
  std::string string(const char* name, const std::string& otherwise) const;  // missing or null
  bool flag(const char* name, bool otherwise) const;
  const nlohmann::json& object(const char* name) const;
  const nlohmann::json& array(const char* name) const;

  /// The id of a token.
  std::int32_t id(const char* name) const;
  std::int32_t as_id(const nlohmann::json& value, const std::string& name) const;

  /// Throws "'<file>': <place> <what>".
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const nlohmann::json& need(const char* name) const;

  const nlohmann::json& value_;
  const std::string& file_;
  std::string place_;
};

}  // namespace lockstep
