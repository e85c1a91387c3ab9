#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "launch/process_memory.h"

namespace lockstep {

/// Reads a piece of .eh_frame, in DWARF's encodings, from the memory of a process. What lies beyond
/// its end reads as zeros and makes it fail().
class UnwindReader {
 public:
  UnwindReader(const ProcessMemory& memory, std::uint64_t address, std::size_t bytes)
      : memory_(&memory), address_(address), text_(bytes, '\0') {
    text_.resize(memory.read(address, text_.data(), bytes));
  }

  std::uint64_t address() const { return address_ + at_; }
  bool at_end() const { return at_ >= text_.size(); }
  bool failed() const { return failed_; }
  void skip(std::uint64_t bytes) { bytes <= text_.size() - at_ ? void(at_ += bytes) : fail(); }

  template <typename T>
  T number() {
    T value{};
    if (sizeof(T) > text_.size() - at_) {
      fail();
      return value;
    }
    std::memcpy(&value, text_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::uint64_t uleb() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = number<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fU} << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }

  std::int64_t sleb() {
    std::uint64_t value = 0;
    for (int shift = 0;;) {
      const auto byte = number<std::uint8_t>();
      if (shift < 64) value |= std::uint64_t{byte & 0x7fU} << shift;
      shift += 7;
      if ((byte & 0x80) != 0) continue;
      if (shift < 64 && (byte & 0x40) != 0) value |= ~std::uint64_t{0} << shift;
      return static_cast<std::int64_t>(value);
    }
  }

  std::string text() {
    std::string word;
    while (const char letter = number<char>()) word += letter;
    return word;
  }

  /// The next bytes, as something to read by itself.
  UnwindReader part(std::uint64_t bytes) {
    UnwindReader reader = *this;
    const std::uint64_t length = std::min<std::uint64_t>(bytes, text_.size() - at_);
    reader.address_ = address();
    reader.text_ = text_.substr(at_, length);
    reader.at_ = 0;
    skip(bytes);
    return reader;
  }

  /// A pointer in one of DW_EH_PE's encodings; `base` is what those relative to data count from.
  std::uint64_t pointer(std::uint8_t encoding, std::uint64_t base) {
    constexpr std::uint8_t kOmitted = 0xff, kToHere = 0x10, kToData = 0x30, kIndirect = 0x80;
    if (encoding == kOmitted) return 0;
    const std::uint64_t here = address();
    std::uint64_t value = raw_pointer(encoding & 0x0f);
    if (value == 0) return 0;
    if ((encoding & 0x70) == kToHere) value += here;
    if ((encoding & 0x70) == kToData) value += base;
    if ((encoding & kIndirect) != 0) value = memory_->read<std::uint64_t>(value).value_or(0);
    return value;
  }

 private:
  std::uint64_t raw_pointer(std::uint8_t format) {
    switch (format) {
      case 0x01:
        return uleb();
      case 0x02:
        return number<std::uint16_t>();
      case 0x03:
        return number<std::uint32_t>();
      case 0x09:
        return static_cast<std::uint64_t>(sleb());
      case 0x0a:
        return static_cast<std::uint64_t>(std::int64_t{number<std::int16_t>()});
      case 0x0b:
        return static_cast<std::uint64_t>(std::int64_t{number<std::int32_t>()});
      default:  // 0, 4 and 12: a whole word
        return number<std::uint64_t>();
    }
  }

  void fail() {
    failed_ = true;
    at_ = text_.size();
  }

  const ProcessMemory* memory_;
  std::uint64_t address_;
  std::string text_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace lockstep
