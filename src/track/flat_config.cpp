#include "track/flat_config.h"

#include <string>

namespace lockstep {
namespace {

void flatten(const nlohmann::json& value, const std::string& name, nlohmann::json& flat) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) {
      flatten(inner, name.empty() ? key : name + "." + key, flat);
    }
  } else if (value.is_array()) {
    flat[name] = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else if (!value.is_null() && !name.empty()) {
    flat[name] = value;
  }
}

}  // namespace

nlohmann::json flat_config(const nlohmann::json& config) {
  nlohmann::json flat = nlohmann::json::object();
  flatten(config, "", flat);
  return flat;
}

}  // namespace lockstep
