#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "archive/element_type.h"

namespace lockstep {

/// A contiguous tensor. Two of them with the same `bytes` are one tensor in Python too.
struct TensorValue {
  ElementType type = ElementType::float32;
  std::vector<std::int64_t> shape = {};
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = nullptr;  // keeps `bytes` alive; null: somebody else does
};

struct Value;
struct DictItem;

struct NoneValue {};
struct BytesValue {
  std::string bytes;
};
struct ListValue {
  std::vector<Value> items;
};
struct TupleValue {
  std::vector<Value> items;
};
/// Of Python: a dict, in the order of insertion.
struct DictValue {
  std::vector<DictItem> items;
  bool ordered = false;  // collections.OrderedDict, what state_dict() returns

  /// Null where there is no such key.
  const Value* find(std::string_view key) const;
};

/// What a file of torch.save can hold, as far as torch.load(weights_only=True) accepts it. Integers
/// beyond 63 bits are unsigned; torch.device and torch.dtype are strings, torch.Size is a tuple, a
/// set is a list.
struct Value {
  std::variant<NoneValue, bool, std::int64_t, std::uint64_t, double, std::string, BytesValue,
               ListValue, TupleValue, DictValue, TensorValue>
      data;
};

struct DictItem {
  Value key;
  Value value;
};

inline const Value* DictValue::find(std::string_view key) const {
  for (const DictItem& item : items) {
    const auto* text = std::get_if<std::string>(&item.key.data);
    if (text != nullptr && *text == key) return &item.value;
  }
  return nullptr;
}

}  // namespace lockstep
