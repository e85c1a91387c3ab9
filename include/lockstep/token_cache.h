#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lockstep/text_records.h"
#include "lockstep/tokenizer.h"

namespace lockstep {

/// The blocks of one part (training or validation) of a cache. Copies are cheap and keep the file
/// mapped. Several threads may read at a time.
class TokenBlocks {
 public:
  std::int64_t size() const;        // blocks
  std::int64_t seq_length() const;  // tokens that a model sees of one
  std::int64_t documents() const;
  std::int64_t tokens() const;       // of documents, with their ends; without padding
  std::int64_t loss_tokens() const;  // labels of all blocks that are not kNoLoss

  /// The label of a token that no loss is taken of.
  static constexpr std::int64_t kNoLoss = -100;

  /// Fills `input` with the tokens of a block and `labels` with those that follow them. Both are
  /// seq_length long. Throws InvalidArgument for an index that no block has.
  void copy(std::int64_t index, std::span<std::int64_t> input,
            std::span<std::int64_t> labels) const;

 private:
  friend class TokenCache;
  struct Part;
  std::shared_ptr<const Part> part_;
};

struct TokenCacheProgress {
  std::int64_t documents = 0;  // so far
  std::int64_t tokens = 0;
  double seconds = 0;
};

/// A cache that was removed to make room.
struct TokenCacheRemoval {
  std::string folder;
  std::string source;  // the name of its data, for people
  std::int64_t bytes = 0;
  std::chrono::seconds unused_for{0};
};

struct TokenCacheOptions {
  std::string directory;  // where caches are kept, one folder for each
  std::int64_t seq_length = 1024;
  PromptTemplate prompt = PromptTemplate::alpaca();
  bool answers_only = false;  // no loss on prompts
  // false: documents follow each other, cut wherever a block ends. true: a document begins a new
  // block where it would not fit into the rest of one, which is filled up without loss; one that is
  // longer than a block is cut.
  bool whole_documents = false;
  // Every document begins a block of its own; the rest of it has no loss. For small models, which
  // learn where things stand sooner when they always stand in the same place.
  bool one_per_block = false;
  double validation_fraction = 0;        // of the documents, chosen by `seed`
  std::optional<TextSource> validation;  // or these documents
  std::uint64_t seed = 0;
  int threads = 0;  // 0: as many as there are cores
  // Called about once a second while a cache is made, which is not often enough to slow it down.
  std::function<void(const TokenCacheProgress&)> progress;
  // For all caches of the directory together; 0: no limit. Beyond it those that were not used for
  // longest are removed when one is made, and `removed` is called for each. One that a process has
  // open is never removed.
  std::int64_t max_bytes = 0;
  std::function<void(const TokenCacheRemoval&)> removed = {};
};

/// Documents as blocks of tokens, in files that all processes of a machine share.
///
/// A cache is made once for a tokenizer, the content of a source and the options; the second start
/// finds it. It appears under its name when it is whole, so a crash leaves nothing that could be
/// taken for one; of two processes that make the same one, one wins and both use it. With several
/// ranks call open_or_make inside rank0_first.
///
/// A document is its prompt and its answer (encoded each by itself, as when a model is asked) or
/// its text, and the tokenizer's end_of_text() after it.
class TokenCache {
 public:
  /// Throws InvalidArgument (also for what the source does) and SystemError. A cache that is found
  /// damaged is made again.
  static TokenCache open_or_make(const Tokenizer& tokenizer, const TextSource& source,
                                 const TokenCacheOptions& options);

  /// One that is there: the folder of a single cache. Reads all of it to compare checksums. Throws
  /// InvalidArgument with the file when something is wrong with it.
  static TokenCache open(const std::string& folder);

  const TokenBlocks& train() const;
  const TokenBlocks& validation() const;  // of size 0 where nothing was set aside

  /// A model needs more embeddings than this.
  std::int32_t largest_id() const;

  /// True when this call made it, false when it was there.
  bool made() const;

  const std::string& folder() const;

 private:
  struct Impl;
  explicit TokenCache(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace lockstep
