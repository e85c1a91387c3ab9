#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"

namespace lockstep {

/// One step of cutting a text into the pieces within which tokens are merged.
struct SplitStage {
  enum class Kind {
    gpt2,          // by GPT-2's pattern
    pattern,       // by a regular expression
    literal,       // at a text
    digits,        // each number character by itself, or runs of them
    prefix_space,  // puts a space before what does not begin with one
  };

  Kind kind = Kind::gpt2;
  std::string text;     // of pattern and literal
  bool invert = false;  // of pattern and literal: what does not match is the match
  bool remove = false;  // of pattern and literal: matches are left out
  bool each_digit = false;

  bool operator==(const SplitStage&) const = default;
};

class Splitter {
 public:
  /// Throws what Regex does.
  explicit Splitter(std::vector<SplitStage> stages);

  /// Whether the one stage is GPT-2's pattern: then end_of_gpt2_piece() does it without a list.
  bool is_gpt2() const;

  /// What pieces point into; keep it as long as they are used.
  using Copies = std::deque<std::string>;

  /// The pieces of a text, none of them empty.
  std::vector<std::string_view> split(std::string_view text, Copies& copies) const;

 private:
  struct Stage {
    SplitStage what;
    std::optional<Regex> regex;
  };
  static void apply(const Stage& stage, std::string_view text, std::vector<std::string_view>& out,
                    Copies& copies);

  std::vector<Stage> stages_;
};

}  // namespace lockstep
