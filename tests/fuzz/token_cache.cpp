// Reads the description of a token cache. What is accepted must
// survive being written again, and its parts must have a size that a file can have.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/error.h"
#include "text/token_cache_files.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const CacheDescription parsed = parse_description(text, "cache.json");
    for (const PartSummary* part : {&parsed.train, &parsed.validation}) {
      const std::int64_t bytes = parsed.layout.file_tokens(part->blocks) * 4;
      if (bytes < 0 || bytes < part->blocks) std::abort();
    }
    const std::string once = description_text(parsed);
    if (description_text(parse_description(once, "cache.json")) != once) std::abort();
  } catch (const InvalidArgument&) {
  }
  return 0;
}
