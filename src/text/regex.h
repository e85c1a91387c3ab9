#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep {

/// A regular expression over UTF-8, in PCRE2, which is loaded when the first one is made. Only
/// tokenizers with a pattern other than GPT-2's need it. Several threads may use one.
class Regex {
 public:
  /// Throws InvalidArgument for a pattern that is none, and SystemError without PCRE2.
  explicit Regex(const std::string& pattern);

  /// Calls `found` with each match, from left to right, as long as they are not empty. A match
  /// never has bytes in it that are not UTF-8.
  void for_each_match(std::string_view text,
                      const std::function<void(std::string_view)>& found) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace lockstep
