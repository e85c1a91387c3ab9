#include "archive/manifest.h"

#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr const char* kFormat = "lockstep-snapshot";

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument(concat("manifest.json is damaged: ", what));
}

json without_checksum(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, file] : manifest.files) {
    files[name] = {{"bytes", file.bytes}, {"xxh3_64", checksum_text(file.checksum)}};
  }
  return {{"format", kFormat},
          {"version", kVersion},
          {"step", manifest.step},
          {"epoch", manifest.epoch},
          {"sequence", manifest.sequence},
          {"slots", manifest.slots},
          {"seed", manifest.seed},
          {"best", manifest.best},
          {"time", manifest.time},
          {"host", manifest.host},
          {"files", files}};
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string format_manifest(const Manifest& manifest) {
  json value = without_checksum(manifest);
  value["xxh3_64"] = checksum_text(checksum_of(value.dump()));
  return value.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view text) {
  Manifest manifest;
  try {
    const json value = json::parse(text);
    if (value.at("format") != kFormat) refuse("it is of another format");
    if (value.at("version") != kVersion) {
      throw InvalidArgument(concat("version ", value["version"].dump(),
                                   " of the format; this lockstep reads version ", kVersion));
    }
    manifest.step = value.at("step").get<std::int64_t>();
    manifest.epoch = value.at("epoch").get<std::int64_t>();
    manifest.sequence = value.at("sequence").get<std::int64_t>();
    manifest.slots = value.at("slots").get<int>();
    manifest.seed = value.at("seed").get<std::uint64_t>();
    manifest.best = value.at("best").get<bool>();
    manifest.time = value.at("time").get<std::string>();
    manifest.host = value.at("host").get<std::string>();
    for (const auto& [name, file] : value.at("files").items()) {
      const auto checksum = parse_checksum(file.at("xxh3_64").get<std::string>());
      if (!checksum || !is_plain_name(name)) refuse(concat("its entry for '", name, "'"));
      manifest.files[name] = {.bytes = file.at("bytes").get<std::uint64_t>(),
                              .checksum = *checksum};
    }
  } catch (const json::exception& error) {
    refuse(first_line(error.what()));
  }
  // Numbers that did not fit, unknown fields, a changed blank: whatever is not exactly what was
  // written shows here.
  if (format_manifest(manifest) != text) refuse("its checksum does not fit its text");
  return manifest;
}

}  // namespace lockstep
