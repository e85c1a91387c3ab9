// Reads pickles and zip files of torch.save. An input that begins with 'P' is a whole file, any
// other a bare pickle with one storage of 64 bytes. What is accepted must survive being written
// again.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "archive/pickle.h"
#include "archive/zip.h"
#include "lockstep/error.h"

using namespace lockstep;

namespace {

std::uint64_t read_all(const Value& value) {
  std::uint64_t total = 1;
  if (const auto* tensor = std::get_if<TensorValue>(&value.data)) {
    if (tensor->bytes.size() != bytes_of(tensor->type, tensor->shape)) std::abort();
    for (const std::byte byte : tensor->bytes) total += std::to_integer<std::uint64_t>(byte);
  } else if (const auto* list = std::get_if<ListValue>(&value.data)) {
    for (const Value& item : list->items) total += read_all(item);
  } else if (const auto* tuple = std::get_if<TupleValue>(&value.data)) {
    for (const Value& item : tuple->items) total += read_all(item);
  } else if (const auto* dict = std::get_if<DictValue>(&value.data)) {
    for (const DictItem& item : dict->items) total += read_all(item.value);
  }
  return total;
}

void write_again(const Value& value) {
  const std::uint64_t total = read_all(value);
  const Pickled written = pickle(value);
  const auto storage = [&](const std::string& key) {
    return written.storages.at(static_cast<std::size_t>(std::atoi(key.c_str())));
  };
  const Value twin =
      unpickle(std::as_bytes(std::span(written.pickle)), {.storage = storage, .owner = nullptr});
  if (read_all(twin) != total) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data), size);
  constexpr std::uint64_t kCopyLimit = 1 << 20;
  try {
    if (size > 0 && data[0] == 'P') {
      const ZipReader zip(input);
      for (const std::string& name : zip.names()) {
        const auto storage = [&](const std::string& key) {
          return zip.content("archive/data/" + key, false);
        };
        write_again(unpickle(zip.content(name, false),
                             {.storage = storage, .owner = nullptr, .copy_limit = kCopyLimit}));
      }
      return 0;
    }
    alignas(16) static const std::byte memory[64] = {};
    const auto storage = [](const std::string&) { return std::span<const std::byte>(memory); };
    write_again(unpickle(input, {.storage = storage, .owner = nullptr, .copy_limit = kCopyLimit}));
  } catch (const InvalidArgument&) {
  }
  return 0;
}
