#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "text/unicode_class.h"
#include "text/utf8.h"

namespace lockstep {
namespace {

// How many bytes of white space a text begins with.
std::size_t leading_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const Utf8Char next = decode_utf8(bytes_of(text) + length, bytes_of(text) + text.size());
    if (next.bytes == 0 || CharClasses::get().of(next.code) != CharClass::space) break;
    length += next.bytes;
  }
  return length;
}

std::size_t trailing_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const std::size_t end = text.size() - length;
    std::size_t start = end - 1;
    while (start > 0 && end - start < 4 && (bytes_of(text)[start] & 0xc0) == 0x80) --start;
    const Utf8Char last = decode_utf8(bytes_of(text) + start, bytes_of(text) + end);
    if (last.bytes != end - start || CharClasses::get().of(last.code) != CharClass::space) break;
    length += last.bytes;
  }
  return length;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  const auto first_byte = [](const AddedToken& token) {
    return static_cast<unsigned char>(token.content.front());
  };
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [&](const AddedToken& a, const AddedToken& b) {
    if (first_byte(a) != first_byte(b)) return first_byte(a) < first_byte(b);
    return a.content.size() > b.content.size();
  });
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    Bucket& bucket = by_first_byte_[first_byte(tokens_[i])];
    if (bucket.begin == bucket.end) bucket.begin = i;
    bucket.end = i + 1;
  }
  if (!tokens_.empty() && first_byte(tokens_.front()) == first_byte(tokens_.back())) {
    only_first_byte_ = first_byte(tokens_.front());
  }
}

const AddedToken* AddedTokenFinder::find_at(std::string_view rest, bool ordinary_specials) const {
  const Bucket bucket = by_first_byte_[static_cast<unsigned char>(rest.front())];
  for (std::uint32_t i = bucket.begin; i < bucket.end; ++i) {
    if (ordinary_specials && tokens_[i].special) continue;
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

// The next place where a token could start.
std::size_t AddedTokenFinder::next_start(std::string_view text, std::size_t from) const {
  if (from >= text.size()) return text.size();
  if (only_first_byte_ >= 0) {
    const void* found = std::memchr(text.data() + from, only_first_byte_, text.size() - from);
    if (found == nullptr) return text.size();
    return static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (from < text.size()) {
    const Bucket bucket = by_first_byte_[static_cast<unsigned char>(text[from])];
    if (bucket.begin != bucket.end) break;
    ++from;
  }
  return from;
}

void AddedTokenFinder::cut(std::string_view text, bool ordinary_specials,
                           std::vector<Part>& parts) const {
  std::size_t done = 0;
  std::size_t at = next_start(text, 0);
  while (at < text.size()) {
    const AddedToken* token = find_at(text.substr(at), ordinary_specials);
    if (token == nullptr) {
      at = next_start(text, at + 1);
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->content.size();
    if (token->left_strip) begin -= trailing_space(text.substr(done, begin - done));
    if (token->right_strip) end += leading_space(text.substr(end));
    if (begin > done) parts.push_back({text.substr(done, begin - done)});
    parts.push_back({text.substr(begin, end - begin), token->id});
    done = end;
    at = next_start(text, done);
  }
  if (done < text.size()) parts.push_back({text.substr(done)});
}

}  // namespace lockstep
