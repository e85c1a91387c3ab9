#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// A token that is found in a text before the text is cut into pieces.
struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool left_strip = false;   // takes the white space before it along
  bool right_strip = false;  // and that after it
  bool normalized = false;   // looked for after those that are not

  bool operator==(const AddedToken&) const = default;
};

/// Finds added tokens: the leftmost first, of several at one place the longest.
class AddedTokenFinder {
 public:
  explicit AddedTokenFinder(const std::vector<AddedToken>& tokens);

  struct Part {
    std::string_view text;
    std::int32_t id = -1;  // of an added token; -1: ordinary text, not empty
  };

  bool empty() const { return tokens_.empty(); }

  /// Appends the parts of a text. With `ordinary_specials` special tokens are not looked for.
  void cut(std::string_view text, bool ordinary_specials, std::vector<Part>& parts) const;

 private:
  const AddedToken* find_at(std::string_view rest, bool ordinary_specials) const;
  std::size_t next_start(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;  // by first byte, longest first
  struct Bucket {
    std::uint32_t begin = 0, end = 0;
  };
  std::array<Bucket, 256> by_first_byte_{};
  int only_first_byte_ = -1;  // where all start with the same one
};

}  // namespace lockstep
