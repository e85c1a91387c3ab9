#include "lockstep/token_cache.h"

#include <algorithm>
#include <filesystem>

#include "core/checksum.h"
#include "lockstep/error.h"
#include "text/files.h"
#include "text/token_cache_files.h"
#include "text/token_cache_maker.h"
#include "text/token_cache_use.h"

namespace lockstep {

struct TokenBlocks::Part {
  MappedFile file;
  BlockLayout layout;
  PartSummary summary;
  std::shared_ptr<const UniqueFd> use;
};

struct TokenCache::Impl {
  std::string folder;
  TokenBlocks train;
  TokenBlocks validation;
  bool made = false;
};

std::int64_t TokenBlocks::size() const {
  return part_->summary.blocks;
}
std::int64_t TokenBlocks::seq_length() const {
  return part_->layout.seq_length;
}
std::int64_t TokenBlocks::documents() const {
  return part_->summary.documents;
}
std::int64_t TokenBlocks::tokens() const {
  return part_->summary.tokens;
}
std::int64_t TokenBlocks::loss_tokens() const {
  return part_->summary.loss_tokens;
}

void TokenBlocks::copy(std::int64_t index, std::span<std::int64_t> input,
                       std::span<std::int64_t> labels) const {
  if (index < 0 || index >= size()) {
    throw InvalidArgument(concat("TokenBlocks: there is no block ", index, "; there are ", size()));
  }
  const auto length = static_cast<std::size_t>(seq_length());
  LOCKSTEP_CHECK(input.size() == length && labels.size() == length, input.size(), " ",
                 labels.size(), " ", length);
  const auto* tokens = reinterpret_cast<const std::uint32_t*>(part_->file.bytes().data()) +
                       index * part_->layout.stride();
  for (std::size_t i = 0; i < length; ++i) {
    input[i] = static_cast<std::int64_t>(tokens[i] & ~kNoLossBit);
    const std::uint32_t next = tokens[i + 1];
    labels[i] = (next & kNoLossBit) != 0 ? kNoLoss : static_cast<std::int64_t>(next);
  }
}

TokenCache::TokenCache(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

TokenCache TokenCache::open(const std::string& folder) {
  const auto use = begin_use(folder);
  const std::string description_file = concat(folder, "/", kCacheDescription);
  const CacheDescription description =
      parse_description(read_file(description_file, 1 << 20), description_file);
  const auto open_part = [&](const char* name, const PartSummary& summary) {
    const std::string path = concat(folder, "/", name);
    const MappedFile file(path);
    const std::int64_t bytes = description.layout.file_tokens(summary.blocks) * 4;
    if (static_cast<std::int64_t>(file.bytes().size()) != bytes) {
      throw InvalidArgument(concat("'", path, "' has ", file.bytes().size(), " bytes instead of ",
                                   bytes, ": it is damaged"));
    }
    if (checksum_of(file.bytes()) != summary.checksum) {
      throw InvalidArgument(concat("'", path, "' is damaged: its checksum is wrong"));
    }
    TokenBlocks blocks;
    blocks.part_ = std::make_shared<const TokenBlocks::Part>(
        TokenBlocks::Part{file, description.layout, summary, use});
    return blocks;
  };
  return TokenCache(std::make_shared<const Impl>(
      Impl{.folder = folder,
           .train = open_part(kTrainPart, description.train),
           .validation = open_part(kValidationPart, description.validation)}));
}

TokenCache TokenCache::open_or_make(const Tokenizer& tokenizer, const TextSource& source,
                                    const TokenCacheOptions& options) {
  const std::string name = cache_name(tokenizer, source, options);
  const std::filesystem::path folder = std::filesystem::path(options.directory) / name;
  if (std::filesystem::exists(folder)) {
    try {
      return open(folder.string());
    } catch (const Error&) {
      // Damaged, or not to be read: whoever can make it again can also remove it.
      std::error_code error;
      std::filesystem::remove_all(folder, error);
      if (error) throw;
    }
  }
  make_cache(tokenizer, source, options, name);
  Impl impl = *open(folder.string()).impl_;
  impl.made = true;
  remove_old_caches(options, name);
  return TokenCache(std::make_shared<const Impl>(std::move(impl)));
}

const TokenBlocks& TokenCache::train() const {
  return impl_->train;
}
const TokenBlocks& TokenCache::validation() const {
  return impl_->validation;
}

std::int32_t TokenCache::largest_id() const {
  return std::max(impl_->train.part_->summary.largest_id,
                  impl_->validation.part_->summary.largest_id);
}

bool TokenCache::made() const {
  return impl_->made;
}
const std::string& TokenCache::folder() const {
  return impl_->folder;
}

}  // namespace lockstep
