#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "core/unique_fd.h"

namespace lockstep {

/// How documents are laid into blocks.
struct BlockLayout {
  std::int64_t seq_length = 0;
  bool overlapping = true;  // a block begins with the last token of the one before
  bool one_per_block = false;

  /// From the first token of a block to that of the next.
  std::int64_t stride() const { return overlapping ? seq_length : seq_length + 1; }
  /// Tokens in the file of a part with so many blocks.
  std::int64_t file_tokens(std::int64_t blocks) const {
    return blocks * stride() + (overlapping && blocks > 0 ? 1 : 0);
  }
};

/// What is known about a part of a cache (training or validation) beside its tokens.
struct PartSummary {
  std::int64_t blocks = 0;
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
  std::int64_t loss_tokens = 0;
  std::int32_t largest_id = -1;
  std::uint64_t checksum = 0;
};

/// Tokens are stored as 32 bits; this one says that no loss is taken of them as labels.
inline constexpr std::uint32_t kNoLossBit = 0x80000000;

/// Writes the blocks of one part to a new file. Everything throws SystemError.
class PartWriter {
 public:
  PartWriter(std::string path, const BlockLayout& layout, std::int32_t padding);

  /// A document with its end; elements may carry kNoLossBit.
  void add_document(const std::vector<std::uint32_t>& tokens);

  /// Fills up the last block and waits for the disk.
  PartSummary finish();

 private:
  void add_token(std::uint32_t token);
  void fill_block();
  void flush();

  std::string path_;
  BlockLayout layout_;
  std::uint32_t padding_;
  UniqueFd fd_;
  std::vector<std::uint32_t> buffer_;
  std::int64_t written_ = 0;  // tokens, those in the buffer included
  PartSummary summary_;
  Checksum checksum_;
};

}  // namespace lockstep
