#include "text/token_cache_files.h"

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "text/json_fields.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;
using nlohmann::json;

constexpr int kFormat = 1;
// Larger than any disk, and far from what overflows when it is multiplied by a block.
constexpr std::int64_t kLargestCount = std::int64_t{1} << 44;
constexpr std::int64_t kLongestBlock = std::int64_t{1} << 24;

Json part_json(const PartSummary& part) {
  return {{"blocks", part.blocks},         {"documents", part.documents},
          {"tokens", part.tokens},         {"loss_tokens", part.loss_tokens},
          {"largest_id", part.largest_id}, {"xxh3", checksum_text(part.checksum)}};
}

std::int64_t number(const JsonFields& fields, const char* name, std::int64_t first,
                    std::int64_t last) {
  const json* value = fields.find(name);
  if (value == nullptr || !value->is_number_integer()) {
    fields.refuse(concat("has no whole number '", name, "'"));
  }
  const auto found = value->get<std::int64_t>();
  if (found < first || found > last) {
    fields.refuse(
        concat("has ", found, " for '", name, "', which is not from ", first, " to ", last));
  }
  return found;
}

PartSummary parse_part(const JsonFields& file, const char* name) {
  const JsonFields fields(file.object(name), file.file(), name);
  PartSummary part{.blocks = number(fields, "blocks", 0, kLargestCount),
                   .documents = number(fields, "documents", 0, kLargestCount),
                   .tokens = number(fields, "tokens", 0, kLargestCount),
                   .loss_tokens = number(fields, "loss_tokens", 0, kLargestCount)};
  part.largest_id = static_cast<std::int32_t>(number(fields, "largest_id", -1, kLargestTokenId));
  const auto checksum = parse_checksum(fields.string("xxh3"));
  if (!checksum) fields.refuse("has no checksum of 16 digits in 'xxh3'");
  part.checksum = *checksum;
  return part;
}

}  // namespace

std::string description_text(const CacheDescription& description) {
  const BlockLayout& layout = description.layout;
  const Json file = {{"format", kFormat},
                     {"seq_length", layout.seq_length},
                     {"overlapping", layout.overlapping},
                     {"source", description.source},
                     {"train", part_json(description.train)},
                     {"validation", part_json(description.validation)}};
  return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

CacheDescription parse_description(const std::string& text, const std::string& file) {
  const json document = parse_json(text, file);
  const JsonFields fields(document, file, "the file");
  number(fields, "format", kFormat, kFormat);
  CacheDescription description;
  description.layout.seq_length = number(fields, "seq_length", 1, kLongestBlock);
  description.layout.overlapping = fields.flag("overlapping", true);
  description.source = fields.string("source", "");
  description.train = parse_part(fields, "train");
  description.validation = parse_part(fields, "validation");
  for (const PartSummary* part : {&description.train, &description.validation}) {
    if (part->blocks > kLargestCount / description.layout.seq_length) {
      fields.refuse(concat("has ", part->blocks, " blocks, more than any disk holds"));
    }
  }
  return description;
}

}  // namespace lockstep
