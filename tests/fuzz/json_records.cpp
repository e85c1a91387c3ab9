// Reads records in JSON, in a list or by lines. What is accepted has something in it.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/error.h"
#include "text/record_fields.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  RecordFields fields{TextSourceOptions{}};
  try {
    parse_json_records(text, "records.json", fields, [](TextRecord&& record) {
      const bool plain = !record.text.empty();
      if (plain && !(record.instruction + record.input + record.output).empty()) std::abort();
      if (record == TextRecord{}) std::abort();
    });
  } catch (const InvalidArgument&) {
  }
  return 0;
}
