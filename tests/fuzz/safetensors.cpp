// Reads files of tensors. What is accepted must lie in the file, and survive being written again.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "archive/safetensors.h"
#include "lockstep/error.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const Safetensors parsed = parse_safetensors(file);
    std::uint64_t total = 0;
    for (const TensorView& view : parsed.tensors) {
      if (view.bytes.size() != bytes_of(view.type, view.shape)) std::abort();
      // Every byte is read, so that the sanitizer sees where it is.
      for (const std::byte byte : view.bytes) total += std::to_integer<std::uint64_t>(byte);
    }
    const std::vector<TensorInfo> infos(parsed.tensors.begin(), parsed.tensors.end());
    const SafetensorsLayout layout = lay_out_safetensors(infos, parsed.metadata);
    std::string again = layout.header;
    for (const std::size_t index : layout.order) {
      const auto bytes = parsed.tensors[index].bytes;
      again.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    const Safetensors twin = parse_safetensors(std::as_bytes(std::span(again)));
    if (twin.tensors.size() != parsed.tensors.size() || twin.metadata != parsed.metadata) {
      std::abort();
    }
  } catch (const InvalidArgument&) {
  }
  return 0;
}
