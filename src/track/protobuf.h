#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Writes a message of Protocol Buffers, field by field. The fields' numbers are those of the
/// message's definition. Enough for the few messages that are written here; libprotobuf cannot be
/// in one process with libtorch's own.
class ProtoMessage {
 public:
  ProtoMessage& integer(int field, std::int64_t value) {
    key(field, 0);
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  ProtoMessage& real(int field, double value) {
    key(field, 1);
    raw(&value, sizeof value);
    return *this;
  }
  ProtoMessage& real32(int field, float value) {
    key(field, 5);
    raw(&value, sizeof value);
    return *this;
  }
  ProtoMessage& text(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  ProtoMessage& message(int field, const ProtoMessage& value) { return text(field, value.bytes_); }
  ProtoMessage& reals(int field, std::span<const double> values) {
    key(field, 2);
    varint(values.size_bytes());
    raw(values.data(), values.size_bytes());
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>(value | 128);
    bytes_ += static_cast<char>(value);
  }
  void key(int field, int wire_type) {
    varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire_type));
  }
  void raw(const void* data, std::size_t size) {
    if (size > 0) bytes_.append(static_cast<const char*>(data), size);
  }

  std::string bytes_;
};

/// Goes through the fields of a message. A message that is damaged ends early.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view bytes) : rest_(bytes) {}

  /// Goes to the next field; false: there is none.
  bool next() {
    std::uint64_t key = 0;
    if (rest_.empty() || !varint(key)) return false;
    field_ = static_cast<int>(key >> 3 & 0x1fffffff);
    number_ = 0;
    text_ = {};
    switch (key & 7) {
      case 0:
        return varint(number_);
      case 1:
        return take(8);
      case 2: {
        std::uint64_t size = 0;
        return varint(size) && take(size);
      }
      case 5:
        return take(4);
      default:
        return false;
    }
  }

  int field() const { return field_; }
  std::int64_t integer() const { return static_cast<std::int64_t>(number_); }
  std::string_view text() const { return text_; }  // of texts and messages

 private:
  bool varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }
  bool take(std::uint64_t size) {
    if (size > rest_.size()) return false;
    text_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  int field_ = 0;
  std::uint64_t number_ = 0;
  std::string_view text_;
};

}  // namespace lockstep
