// What a worker and its agent read from each other: text in, a message or InvalidArgument out; and
// a message that was read survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "control/worker_messages.h"
#include "lockstep/error.h"

namespace {

using namespace lockstep;

void check_from_worker(std::string_view text) {
  try {
    const MessageFromWorker message = decode_from_worker(text);
    LOCKSTEP_CHECK(decode_from_worker(encode_from_worker(message)) == message, text);
  } catch (const InvalidArgument&) {
  }
}

void check_to_worker(std::string_view text) {
  try {
    const MessageToWorker message = decode_to_worker(text);
    LOCKSTEP_CHECK(decode_to_worker(encode_to_worker(message)) == message, text);
  } catch (const InvalidArgument&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_from_worker(text);
  check_to_worker(text);
  return 0;
}
