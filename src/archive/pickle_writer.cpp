#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <tuple>

#include "archive/pickle.h"
#include "archive/pickle_opcodes.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kDeepest = 200;

// Nothing is memorized: that only makes pickles shorter, and storages are shared by their numbers.
class Pickler {
 public:
  Pickled run(const Value& value) {
    result_.pickle = {opcode::kProto, 2};
    write(value, 0);
    op(opcode::kStop);
    return std::move(result_);
  }

 private:
  void write(const Value& value, int depth) {
    if (depth > kDeepest) throw InvalidArgument("values are nested too deeply to be written");
    std::visit([&](const auto& data) { put(data, depth + 1); }, value.data);
  }

  void op(char code) { result_.pickle += code; }
  void little_endian(std::uint64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) result_.pickle += static_cast<char>(number >> (8 * i) & 0xff);
  }
  void global(std::string_view module, std::string_view name) {
    op(opcode::kGlobal);
    result_.pickle += concat(module, "\n", name, "\n");
  }

  void put(NoneValue, int) { op(opcode::kNone); }
  void put(bool value, int) { op(value ? opcode::kNewTrue : opcode::kNewFalse); }
  void put(std::int64_t value, int) {
    if (value >= 0 && value <= 0xff) {
      op(opcode::kBinInt1);
      little_endian(static_cast<std::uint64_t>(value), 1);
    } else if (value >= std::numeric_limits<std::int32_t>::min() &&
               value <= std::numeric_limits<std::int32_t>::max()) {
      op(opcode::kBinInt);
      little_endian(static_cast<std::uint64_t>(value), 4);
    } else {
      op(opcode::kLong1);
      little_endian(8, 1);
      little_endian(static_cast<std::uint64_t>(value), 8);
    }
  }
  void put(std::uint64_t value, int depth) {
    if (value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return put(static_cast<std::int64_t>(value), depth);
    }
    op(opcode::kLong1);
    little_endian(9, 1);
    little_endian(value, 8);
    little_endian(0, 1);  // the sign
  }
  void put(double value, int) {
    op(opcode::kBinFloat);
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int i = 7; i >= 0; --i) result_.pickle += static_cast<char>(bits >> (8 * i) & 0xff);
  }
  void put(const std::string& text, int) {
    if (text.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw InvalidArgument(
          concat("a string of ", text.size(), " bytes is too long to be written"));
    }
    op(opcode::kBinUnicode);
    little_endian(text.size(), 4);
    result_.pickle += text;
  }
  // _codecs.encode(text, "latin1"), where each byte is a character.
  void put(const BytesValue& value, int depth) {
    std::string text;
    for (const char c : value.bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        text += c;
      } else {
        text += static_cast<char>(0xc0 | byte >> 6);
        text += static_cast<char>(0x80 | (byte & 0x3f));
      }
    }
    global("_codecs", "encode");
    put(text, depth);
    put(std::string("latin1"), depth);
    op(opcode::kTuple2);
    op(opcode::kReduce);
  }
  void put(const ListValue& list, int depth) {
    op(opcode::kEmptyList);
    op(opcode::kMark);
    for (const Value& item : list.items) write(item, depth);
    op(opcode::kAppends);
  }
  void put(const TupleValue& tuple, int depth) {
    op(opcode::kMark);
    for (const Value& item : tuple.items) write(item, depth);
    op(opcode::kTuple);
  }
  void put(const DictValue& dict, int depth) {
    if (dict.ordered) {
      empty_ordered_dict();
    } else {
      op(opcode::kEmptyDict);
    }
    op(opcode::kMark);
    for (const DictItem& item : dict.items) {
      write(item.key, depth);
      write(item.value, depth);
    }
    op(opcode::kSetItems);
  }
  void empty_ordered_dict() {
    global("collections", "OrderedDict");
    op(opcode::kEmptyTuple);
    op(opcode::kReduce);
  }

  void put(const TensorValue& tensor, int depth) {
    const auto bytes = bytes_of(tensor.type, tensor.shape);
    LOCKSTEP_CHECK(bytes == tensor.bytes.size(), describe(tensor.type, tensor.shape), " with ",
                   tensor.bytes.size(), " bytes");
    const ElementTypeNames& names = names_of(tensor.type);
    // Types that came to PyTorch late have no storage class of their own.
    const bool typed = !names.storage.empty();
    global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    op(opcode::kMark);
    storage(tensor, names, depth);
    put(std::int64_t{0}, depth);
    put_numbers(tensor.shape);
    put_numbers(strides_of(tensor.shape));
    op(opcode::kNewFalse);  // requires_grad
    empty_ordered_dict();   // hooks
    if (!typed) global("torch", names.torch);
    op(opcode::kTuple);
    op(opcode::kReduce);
  }

  void storage(const TensorValue& tensor, const ElementTypeNames& names, int depth) {
    op(opcode::kMark);
    put(std::string("storage"), depth);
    if (names.storage.empty()) {
      global("torch.storage", "UntypedStorage");
    } else {
      global("torch", names.storage);
    }
    put(std::to_string(number_of(tensor)), depth);
    put(std::string("cpu"), depth);
    const std::size_t count = tensor.bytes.size() / (names.storage.empty() ? 1 : names.bytes);
    put(static_cast<std::int64_t>(count), depth);
    op(opcode::kTuple);
    op(opcode::kBinPersId);
  }

  std::size_t number_of(const TensorValue& tensor) {
    const std::size_t next = result_.storages.size();
    if (!tensor.bytes.empty()) {
      // Python wants all views of a storage to be of one type, so another type is another storage.
      const auto [known, is_new] =
          numbers_.emplace(std::tuple(tensor.bytes.data(), tensor.bytes.size(), tensor.type), next);
      if (!is_new) return known->second;
    }
    result_.storages.push_back(tensor.bytes);
    return next;
  }

  void put_numbers(const std::vector<std::int64_t>& numbers) {
    op(opcode::kMark);
    for (const std::int64_t number : numbers) put(number, 0);
    op(opcode::kTuple);
  }

  static std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape) {
    std::vector<std::int64_t> strides(shape.size());
    std::uint64_t step = 1;  // of an empty tensor it may be beyond all bounds
    for (std::size_t i = shape.size(); i-- > 0;) {
      strides[i] = static_cast<std::int64_t>(step);
      step *= static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1));
    }
    return strides;
  }

  Pickled result_;
  std::map<std::tuple<const std::byte*, std::size_t, ElementType>, std::size_t> numbers_;
};

}  // namespace

Pickled pickle(const Value& value) {
  return Pickler().run(value);
}

}  // namespace lockstep
