// Packed floats, as another machine sends them: any bytes are unpacked or refused, and any numbers
// come back from their packed form. The first two bytes say how many bytes are expected.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "lockstep/error.h"
#include "shm/pack.h"

namespace {

// The input over and over, so that there is enough to pack.
std::vector<std::uint8_t> repeated(const std::uint8_t* data, std::size_t size) {
  std::vector<std::uint8_t> numbers(8192);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = data[i % size];
  return numbers;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  lockstep::FloatPacker packer;
  const std::size_t expected = data[0] + 256U * data[1];
  const std::vector<std::uint8_t> message(data + 2, data + size);  // its end is watched
  std::vector<std::uint8_t> out(expected);
  try {
    packer.unpack(message.data(), message.size(), out.data(), out.size());
  } catch (const lockstep::Error&) {
  }
  const auto numbers = repeated(data, size);
  for (const auto type : {lockstep::ElementType::float32, lockstep::ElementType::bfloat16}) {
    std::vector<std::uint8_t> packed(packer.packed_limit(numbers.size()));
    packed.resize(packer.pack(type, numbers.data(), numbers.size(), packed.data()));
    if (packed.empty()) continue;
    std::vector<std::uint8_t> back(numbers.size());
    packer.unpack(packed.data(), packed.size(), back.data(), back.size());
    if (back != numbers) __builtin_trap();
  }
  return 0;
}
