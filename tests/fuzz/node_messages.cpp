// What nodes and the coordinator read from each other: text in, a message or InvalidArgument out;
// what was read is written as the same text again and again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "launch/messages.h"
#include "lockstep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string once = lockstep::encode(lockstep::decode(text));
    LOCKSTEP_CHECK(lockstep::encode(lockstep::decode(once)) == once, text);
  } catch (const lockstep::InvalidArgument&) {
  }
  return 0;
}
