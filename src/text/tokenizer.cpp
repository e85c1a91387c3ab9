#include "lockstep/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "core/durable_file.h"
#include "lockstep/error.h"
#include "text/bpe.h"
#include "text/gpt2_scanner.h"
#include "text/piece_cache.h"
#include "text/token_table.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

std::vector<AddedToken> tokens_with(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> found;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(found),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return found;
}

// Where the shares begin that threads take one after the other, and the end of the last. Many short
// texts make a share, so that threads do not fight for the next one.
std::vector<std::size_t> shares_of(std::span<const std::string_view> texts) {
  constexpr std::size_t kBytes = 16 << 10;
  std::vector<std::size_t> begins = {0};
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    bytes += texts[i].size() + 64;
    if (bytes < kBytes && i + 1 < texts.size()) continue;
    begins.push_back(i + 1);
    bytes = 0;
  }
  return begins;
}

}  // namespace

class Tokenizer::Impl {
 public:
  // What one thread needs while it encodes; kept for the next call.
  struct Workspace {
    PieceCache cache;
    Bpe::Scratch scratch;
    std::vector<AddedTokenFinder::Part> parts;
  };

  explicit Impl(TokenizerSpec spec)
      : spec_(std::move(spec)),
        table_(spec_),
        plain_added_(tokens_with(spec_.added, false)),
        normalized_added_(tokens_with(spec_.added, true)),
        splitter_(spec_.stages),
        fast_(splitter_.is_gpt2()),
        bpe_(table_.make_bpe(spec_)) {
    if (spec_.ignore_merges) whole_pieces_ = table_.ids_by_bytes(spec_);
    if (!spec_.end_of_text && table_.id_of(kEndOfText)) spec_.end_of_text = kEndOfText;
  }

  void encode(std::string_view text, const EncodeOptions& options, Workspace& work,
              std::vector<std::int32_t>& out) const {
    if (options.add_special_tokens) out.insert(out.end(), spec_.before.begin(), spec_.before.end());
    cut_added(plain_added_, text, options, work, out, [&](std::string_view part) {
      cut_added(normalized_added_, part, options, work, out,
                [&](std::string_view ordinary) { encode_ordinary(ordinary, work, out); });
    });
    if (options.add_special_tokens) out.insert(out.end(), spec_.after.begin(), spec_.after.end());
  }

  std::unique_ptr<Workspace> take_workspace() const {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Workspace> work = std::move(idle_.back());
        idle_.pop_back();
        return work;
      }
    }
    return std::make_unique<Workspace>();
  }

  void give_back(std::unique_ptr<Workspace> work) const {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(work));
  }

  const TokenizerSpec& spec() const { return spec_; }
  const TokenTable& table() const { return table_; }

 private:
  template <typename Ordinary>
  void cut_added(const AddedTokenFinder& finder, std::string_view text,
                 const EncodeOptions& options, Workspace& work, std::vector<std::int32_t>& out,
                 const Ordinary& ordinary) const {
    if (finder.empty()) {
      ordinary(text);
      return;
    }
    // The inner call appends behind the outer one's parts, and takes its own away again.
    const std::size_t first = work.parts.size();
    finder.cut(text, options.split_special_tokens, work.parts);
    for (std::size_t i = first; i < work.parts.size(); ++i) {
      const AddedTokenFinder::Part part = work.parts[i];
      if (part.id >= 0) {
        out.push_back(part.id);
      } else {
        ordinary(part.text);
      }
    }
    work.parts.resize(first);
  }

  void encode_ordinary(std::string_view text, Workspace& work,
                       std::vector<std::int32_t>& out) const {
    if (fast_) {
      for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = end_of_gpt2_piece(text, begin);
        encode_piece(text.substr(begin, end - begin), text.size() - begin, work, out);
        begin = end;
      }
      return;
    }
    Splitter::Copies copies;
    for (const std::string_view piece : splitter_.split(text, copies)) {
      encode_piece(piece, piece.size(), work, out);
    }
  }

  // `readable`: bytes that may be looked at from the first of the piece on.
  void encode_piece(std::string_view piece, std::size_t readable, Workspace& work,
                    std::vector<std::int32_t>& out) const {
    if (piece.size() > PieceCache::kLongestPiece) {
      merge_piece(piece, work, out);
      return;
    }
    const PieceCache::Key key(piece, readable);
    if (work.cache.append(key, out)) return;
    const std::size_t first = out.size();
    merge_piece(piece, work, out);
    work.cache.remember(key, std::span(out).subspan(first));
  }

  void merge_piece(std::string_view piece, Workspace& work, std::vector<std::int32_t>& out) const {
    if (spec_.ignore_merges) {
      if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
        out.push_back(whole->second);
        return;
      }
    }
    bpe_.encode(piece, out, work.scratch);
  }

  TokenizerSpec spec_;
  TokenTable table_;
  IdsByText whole_pieces_;  // filled only with ignore_merges
  AddedTokenFinder plain_added_, normalized_added_;
  Splitter splitter_;
  bool fast_;
  Bpe bpe_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_shared<const Impl>(std::move(spec))) {}

Tokenizer Tokenizer::load(const std::string& path) {
  TokenizerSpec spec = read_tokenizer_files(path);
  try {
    return Tokenizer(std::move(spec));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", path, "': ", error.what()));
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text,
                                            const EncodeOptions& options) const {
  auto work = impl_->take_workspace();
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  impl_->encode(text, options, *work, ids);
  impl_->give_back(std::move(work));
  return ids;
}

std::vector<std::vector<std::int32_t>> Tokenizer::encode_batch(
    std::span<const std::string_view> texts, const EncodeBatchOptions& options) const {
  if (options.threads < 0) {
    throw InvalidArgument(concat("encode_batch: threads is ", options.threads,
                                 "; it cannot be negative (0: one for each core)"));
  }
  const std::vector<std::size_t> shares = shares_of(texts);
  std::vector<std::vector<std::int32_t>> results(texts.size());
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    try {
      auto workspace = impl_->take_workspace();
      for (std::size_t share = next++; share + 1 < shares.size(); share = next++) {
        for (std::size_t i = shares[share]; i < shares[share + 1]; ++i) {
          results[i].reserve(texts[i].size() / 3 + 8);
          impl_->encode(texts[i], options.encode, *workspace, results[i]);
          results[i].shrink_to_fit();
        }
      }
      impl_->give_back(std::move(workspace));
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  const auto wanted = options.threads == 0 ? cores : static_cast<unsigned>(options.threads);
  const auto threads = std::min<std::size_t>(wanted, shares.size() - 1);
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return results;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids,
                              const DecodeOptions& options) const {
  const std::vector<Token>& tokens = impl_->table().tokens();
  std::string text;
  text.reserve(ids.size() * 4);
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokens.size() ||
        !tokens[static_cast<std::size_t>(id)].known) {
      throw InvalidArgument(concat("decode: no token of the tokenizer has the id ", id,
                                   "; its size is ", tokens.size()));
    }
    const Token& token = tokens[static_cast<std::size_t>(id)];
    if (!token.special || !options.skip_special_tokens) text += token.bytes;
  }
  return text;
}

std::int64_t Tokenizer::size() const {
  return static_cast<std::int64_t>(impl_->table().tokens().size());
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  return impl_->table().id_of(token);
}

std::string_view Tokenizer::token_of(std::int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return impl_->table().tokens()[static_cast<std::size_t>(id)].name;
}

std::optional<std::int32_t> Tokenizer::end_of_text() const {
  const auto& name = impl_->spec().end_of_text;
  return name ? impl_->table().id_of(*name) : std::nullopt;
}

void Tokenizer::save(const std::string& directory) const {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw SystemError(concat("cannot make '", directory, "': ", error.message()));
  const TokenizerSpec& spec = impl_->spec();
  write_durably(directory + "/vocab.json", vocabulary_json_of(spec));
  write_durably(directory + "/merges.txt", merges_text_of(spec));
  write_durably(directory + "/tokenizer_config.json", tokenizer_config_of(spec));
  write_durably(directory + "/tokenizer.json", tokenizer_json_of(spec));
}

std::uint64_t Tokenizer::fingerprint() const {
  return fingerprint_of(impl_->spec());
}

}  // namespace lockstep
