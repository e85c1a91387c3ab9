// Reads manifest.json and state.json. What is accepted must be exactly what would be written.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "archive/manifest.h"
#include "archive/state_file.h"
#include "lockstep/error.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    if (format_manifest(parse_manifest(text)) != text) std::abort();
  } catch (const InvalidArgument&) {
  }
  try {
    parse_state_file(format_state_file(parse_state_file(text)));
  } catch (const InvalidArgument&) {
  }
  return 0;
}
