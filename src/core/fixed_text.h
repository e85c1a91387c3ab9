#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// Builds text in memory that the caller provides, for code that must not allocate, such as a
/// signal handler. What does not fit is left out. The text always ends with a zero byte.
class FixedText {
 public:
  template <std::size_t size>
  explicit FixedText(char (&storage)[size]) : data_(storage), capacity_(size - 1) {
    static_assert(size > 0);
    data_[0] = '\0';
  }

  FixedText& add(std::string_view text);
  FixedText& add_decimal(std::uint64_t number);
  FixedText& add_hex(std::uint64_t number);  // 0x1f

  /// What stands for `text` inside a JSON string: ASCII only, so that a reader in any locale gets
  /// the same; bytes that are not UTF-8 become U+FFFD.
  FixedText& add_json(std::string_view text);

  /// `text` as one line: line breaks and other control characters become blanks.
  FixedText& add_line(std::string_view text);

  std::string_view view() const { return {data_, size_}; }
  const char* c_str() const { return data_; }

  /// Whether something was left out.
  bool truncated() const { return truncated_; }

 private:
  void add_escape(std::uint32_t code_unit);

  char* data_;
  std::size_t capacity_;
  std::size_t size_ = 0;
  bool truncated_ = false;
};

}  // namespace lockstep
