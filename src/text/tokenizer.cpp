#include "lockstep/tokenizer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "core/checksum.h"
#include "core/durable_file.h"
#include "lockstep/error.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/gpt2_scanner.h"
#include "text/piece_cache.h"
#include "text/tokenizer_spec.h"

namespace lockstep {
namespace {

struct Token {
  std::string name;
  std::string bytes;
  bool known = false;
  bool special = false;
};

// What one thread needs while it encodes; kept for the next call.
struct Workspace {
  PieceCache cache;
  Bpe::Scratch scratch;
  std::vector<AddedTokenFinder::Part> parts;
};

std::vector<AddedToken> tokens_with(const std::vector<AddedToken>& tokens, bool normalized) {
  std::vector<AddedToken> found;
  std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(found),
               [&](const AddedToken& token) { return token.normalized == normalized; });
  return found;
}

}  // namespace

class Tokenizer::Impl {
 public:
  explicit Impl(TokenizerSpec spec)
      : spec_(std::move(spec)),
        plain_added_(tokens_with(spec_.added, false)),
        normalized_added_(tokens_with(spec_.added, true)),
        splitter_(spec_.stages),
        fast_(splitter_.is_gpt2()),
        bpe_(make_bpe()) {
    if (!spec_.end_of_text && ids_.contains("<|endoftext|>")) spec_.end_of_text = "<|endoftext|>";
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
  const std::vector<Token>& tokens() const { return tokens_; }

  std::optional<std::int32_t> id_of(std::string_view name) const {
    const auto found = ids_.find(name);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

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

  Token& new_token(const std::string& name, std::int32_t id) {
    const auto [entry, is_new] = ids_.try_emplace(name, id);
    if (!is_new && entry->second != id) {
      throw InvalidArgument(
          concat("the tokenizer gives '", name, "' two ids: ", entry->second, " and ", id));
    }
    Token& token = tokens_[static_cast<std::size_t>(id)];
    if (token.known && token.name != name) {
      throw InvalidArgument(
          concat("the tokenizer gives the id ", id, " to '", token.name, "' and to '", name, "'"));
    }
    token.name = name;
    token.known = true;
    return token;
  }

  void fill_tokens() {
    std::int32_t largest = -1;
    for (const auto& [name, id] : spec_.vocabulary) largest = std::max(largest, id);
    for (const AddedToken& token : spec_.added) largest = std::max(largest, token.id);
    tokens_.resize(static_cast<std::size_t>(largest) + 1);
    ids_.reserve(tokens_.size());
    for (const auto& [name, id] : spec_.vocabulary) {
      new_token(name, id).bytes = bytes_of_name(name).value_or(name);
    }
    for (const AddedToken& added : spec_.added) {
      Token& token = new_token(added.content, added.id);
      token.bytes = added.content;
      token.special = added.special;
    }
    for (const auto* ids : {&spec_.before, &spec_.after}) {
      for (const std::int32_t id : *ids) {
        if (id > largest || !tokens_[static_cast<std::size_t>(id)].known) {
          throw InvalidArgument(
              concat("the tokenizer's template adds the token ", id, ", which does not exist"));
        }
      }
    }
  }

  std::int32_t need_id(const std::string& name, const char* role, std::size_t merge) const {
    const auto found = ids_.find(name);
    if (found == ids_.end()) {
      throw InvalidArgument(concat("the tokenizer's merge ", merge + 1, " has '", name,
                                   "' for its ", role, ", which is not in the vocabulary"));
    }
    return found->second;
  }

  Bpe make_bpe() {
    fill_tokens();
    std::int32_t unknown = -1;
    if (spec_.unknown) {
      const auto found = ids_.find(*spec_.unknown);
      if (found == ids_.end()) {
        throw InvalidArgument(
            concat("the tokenizer's unk_token '", *spec_.unknown, "' is not in its vocabulary"));
      }
      unknown = found->second;
    }
    std::array<std::int32_t, 256> byte_ids{};
    int missing = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(name_of_bytes(std::string(1, static_cast<char>(byte))));
      byte_ids[byte] = found == ids_.end() ? unknown : found->second;
      if (byte_ids[byte] < 0) ++missing;
    }
    if (missing > 0) {
      throw InvalidArgument(
          concat("the tokenizer's vocabulary lacks ", missing,
                 " of the 256 single bytes and has no unk_token for them; train it "
                 "with the byte-level alphabet as its initial alphabet"));
    }
    std::vector<Bpe::Merge> merges;
    merges.reserve(spec_.merges.size());
    for (std::size_t i = 0; i < spec_.merges.size(); ++i) {
      const auto& [left, right] = spec_.merges[i];
      merges.push_back({.left = need_id(left, "left part", i),
                        .right = need_id(right, "right part", i),
                        .result = need_id(left + right, "result", i)});
    }
    if (spec_.ignore_merges) {
      for (const auto& [name, id] : spec_.vocabulary) {
        whole_pieces_.emplace(tokens_[static_cast<std::size_t>(id)].bytes, id);
      }
    }
    return Bpe(byte_ids, merges);
  }

  struct NameHash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Ids = std::unordered_map<std::string, std::int32_t, NameHash, std::equal_to<>>;

  TokenizerSpec spec_;
  std::vector<Token> tokens_;  // by id
  Ids ids_;                    // by name
  Ids whole_pieces_;           // by bytes; only with ignore_merges
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
  std::unique_ptr<Workspace> work = impl_->take_workspace();
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
  std::vector<std::vector<std::int32_t>> results(texts.size());
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work = [&] {
    constexpr std::size_t kAtATime = 16;  // short texts would fight for `next`
    try {
      std::unique_ptr<Workspace> workspace = impl_->take_workspace();
      for (std::size_t first = next.fetch_add(kAtATime); first < texts.size();
           first = next.fetch_add(kAtATime)) {
        for (std::size_t i = first; i < std::min(first + kAtATime, texts.size()); ++i) {
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
  const auto threads = std::min<std::size_t>(wanted, (texts.size() + 15) / 16);
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
  const std::vector<Token>& tokens = impl_->tokens();
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
  return static_cast<std::int64_t>(impl_->tokens().size());
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  return impl_->id_of(token);
}

std::string_view Tokenizer::token_of(std::int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return impl_->tokens()[static_cast<std::size_t>(id)].name;
}

std::optional<std::int32_t> Tokenizer::end_of_text() const {
  const auto& name = impl_->spec().end_of_text;
  return name ? impl_->id_of(*name) : std::nullopt;
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
  TokenizerSpec spec = impl_->spec();
  spec.json.clear();  // how it is written does not matter
  std::string text = tokenizer_json_of(spec);
  for (const auto* ids : {&spec.before, &spec.after}) {
    for (const std::int32_t id : *ids) text += concat(" ", id);
    text += ";";
  }
  return checksum_of(text);
}

}  // namespace lockstep
