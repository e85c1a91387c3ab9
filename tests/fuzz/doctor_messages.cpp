// What the nodes of a doctor read from each other: text in, a message or InvalidArgument out; what
// was read is written as the same text again and again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "doctor/messages.h"
#include "lockstep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string once = encode_doctor_message(decode_doctor_message(text));
    LOCKSTEP_CHECK(encode_doctor_message(decode_doctor_message(once)) == once, text);
  } catch (const InvalidArgument&) {
  }
  return 0;
}
