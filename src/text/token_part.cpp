#include "text/token_part.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kBufferedTokens = 1 << 18;

}  // namespace

PartWriter::PartWriter(std::string path, const BlockLayout& layout, std::int32_t padding)
    : path_(std::move(path)),
      layout_(layout),
      padding_(static_cast<std::uint32_t>(padding) | kNoLossBit),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644)) {
  if (!fd_) throw_errno(concat("cannot make '", path_, "'"));
  buffer_.reserve(kBufferedTokens);
}

void PartWriter::flush() {
  std::span<const std::byte> bytes = std::as_bytes(std::span(buffer_));
  checksum_.update(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno != EINTR) throw_errno(concat("cannot write '", path_, "'"));
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  buffer_.clear();
}

void PartWriter::add_token(std::uint32_t token) {
  // The first token of a block, or of all where blocks overlap, is nobody's next token.
  const bool is_label = layout_.overlapping ? written_ > 0 : written_ % layout_.stride() != 0;
  if (is_label && (token & kNoLossBit) == 0) ++summary_.loss_tokens;
  buffer_.push_back(token);
  ++written_;
  if (buffer_.size() == kBufferedTokens) flush();
}

// Ends a block that has begun; only where blocks do not overlap.
void PartWriter::fill_block() {
  while (written_ % layout_.stride() != 0) add_token(padding_);
}

void PartWriter::add_document(const std::vector<std::uint32_t>& tokens) {
  ++summary_.documents;
  summary_.tokens += static_cast<std::int64_t>(tokens.size());
  for (const std::uint32_t token : tokens) {
    summary_.largest_id =
        std::max(summary_.largest_id, static_cast<std::int32_t>(token & ~kNoLossBit));
  }
  if (layout_.overlapping) {
    for (const std::uint32_t token : tokens) add_token(token);
    return;
  }
  const auto block = static_cast<std::size_t>(layout_.stride());
  const auto used = static_cast<std::size_t>(written_ % layout_.stride());
  if (layout_.one_per_block || used + tokens.size() > block) fill_block();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    // Where a document is cut, its last token is seen again, so that each is a label once.
    if (i > 0 && written_ % layout_.stride() == 0) add_token(tokens[i - 1]);
    add_token(tokens[i]);
  }
}

PartSummary PartWriter::finish() {
  if (!layout_.overlapping) {
    fill_block();
    summary_.blocks = written_ / layout_.stride();
  } else if (written_ > 0) {
    const std::int64_t labels = std::max<std::int64_t>(written_ - 1, 1);
    summary_.blocks = (labels + layout_.seq_length - 1) / layout_.seq_length;
    while (written_ < layout_.file_tokens(summary_.blocks)) add_token(padding_);
  }
  if (summary_.documents > 0) {
    summary_.largest_id =
        std::max(summary_.largest_id, static_cast<std::int32_t>(padding_ & ~kNoLossBit));
  }
  flush();
  if (::fsync(fd_.get()) != 0 && errno != EINVAL) throw_errno(concat("cannot sync '", path_, "'"));
  summary_.checksum = checksum_.value();
  return summary_;
}

}  // namespace lockstep
