#include <array>
#include <cstring>
#include <string_view>

#include "archive/pickle_node.h"
#include "lockstep/error.h"

namespace lockstep::unpickling {
namespace {

constexpr std::array<std::string_view, 10> kFunctions{
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.Size",
    "torch.device",
    "builtins.set",
    "_codecs.encode",
};
constexpr std::string_view kUntypedStorage = "torch.storage.UntypedStorage";

std::optional<ElementType> type_of_storage_class(std::string_view name) {
  return name.starts_with("torch.") ? element_type_of_storage(name.substr(6)) : std::nullopt;
}

std::optional<ElementType> type_of_dtype(std::string_view name) {
  return name.starts_with("torch.") ? element_type_of_torch(name.substr(6)) : std::nullopt;
}

template <typename Data>
const Data& as(const Node& node, const char* what) {
  if (const auto* data = std::get_if<Data>(&node.data)) return *data;
  refuse(concat("a call whose argument is not ", what));
}

const Node& argument(const std::vector<Node*>& arguments, std::size_t index) {
  if (index >= arguments.size()) refuse("a call with too few arguments");
  return *arguments[index];
}

std::vector<std::int64_t> numbers(const Node& node) {
  std::vector<std::int64_t> result;
  for (const Node* item : as<Tuple>(node, "a tuple").items) {
    result.push_back(as<std::int64_t>(*item, "an integer"));
  }
  return result;
}

// The reverse of what Pickler::put(BytesValue) does.
BytesValue encode_latin1(const std::vector<Node*>& arguments) {
  if (as<std::string>(argument(arguments, 1), "a string") != "latin1") {
    refuse("bytes in another encoding than latin1");
  }
  const auto& text = as<std::string>(argument(arguments, 0), "a string");
  BytesValue value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      value.bytes += text[i];
      continue;
    }
    if ((byte != 0xc2 && byte != 0xc3) || i + 1 == text.size()) refuse("bytes beyond latin1");
    value.bytes +=
        static_cast<char>((byte & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3f));
  }
  return value;
}

Dict ordered_dict(const std::vector<Node*>& arguments) {
  Dict dict{.items = {}, .ordered = true};
  if (arguments.empty()) return dict;
  for (const Node* pair : as<List>(*arguments[0], "a list").items) {
    const auto* tuple = std::get_if<Tuple>(&pair->data);
    const auto& items = tuple != nullptr ? tuple->items : as<List>(*pair, "a pair").items;
    if (items.size() != 2) refuse("a pair that is not one");
    dict.items.emplace_back(items[0], items[1]);
  }
  return dict;
}

std::string device(const std::vector<Node*>& arguments) {
  std::string text = as<std::string>(argument(arguments, 0), "a string");
  if (arguments.size() > 1) text += concat(":", as<std::int64_t>(*arguments[1], "an integer"));
  return text;
}

// Row-major without gaps. Dimensions of length 1 may have any stride.
bool is_contiguous(const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides) {
  std::int64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

// The index of the last element in the storage; shape and strides are known to be valid.
std::int64_t last_index(std::int64_t offset, const std::vector<std::int64_t>& shape,
                        const std::vector<std::int64_t>& strides) {
  std::int64_t last = offset;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      refuse("a tensor that reaches beyond its storage");
    }
  }
  return last;
}

}  // namespace

Node* Calls::add(Node node) {
  return &nodes_.emplace_back(std::move(node));
}

std::string Calls::check_global(const std::string& module, const std::string& name) {
  // Pickles of protocol 2 have the names of Python 2.
  const std::string full = concat(module == "__builtin__" ? "builtins" : module, ".", name);
  for (const std::string_view known : kFunctions) {
    if (full == known) return full;
  }
  if (full == kUntypedStorage || type_of_storage_class(full) || type_of_dtype(full)) return full;
  throw InvalidArgument(concat("it uses '", full,
                               "', which is not among the names that a file of tensors needs; "
                               "nothing of it was executed"));
}

Node* Calls::persistent(const Node& id) {
  const auto& fields = as<Tuple>(id, "a tuple").items;
  if (as<std::string>(argument(fields, 0), "a string") != "storage") {
    refuse("it refers to something else than a storage");
  }
  const std::string& type = as<Global>(argument(fields, 1), "a class").name;
  Storage storage{.type = type_of_storage_class(type),
                  .key = as<std::string>(argument(fields, 2), "a string"),
                  .count = as<std::int64_t>(argument(fields, 4), "an integer")};
  if (!storage.type && type != kUntypedStorage) refuse(concat("'", type, "' is not a storage"));
  if (storage.count < 0) refuse("a storage of negative length");
  return add({std::move(storage)});
}

Node* Calls::reduce(const Node& function, const Node& argument_tuple) {
  const std::string& name = as<Global>(function, "a function").name;
  const auto& arguments = as<Tuple>(argument_tuple, "a tuple").items;
  if (name == "collections.OrderedDict") return add({ordered_dict(arguments)});
  if (name == "torch._utils._rebuild_tensor" || name == "torch._utils._rebuild_tensor_v2") {
    return add({rebuild_tensor(arguments, std::nullopt)});
  }
  if (name == "torch._utils._rebuild_tensor_v3") {
    const auto type = type_of_dtype(as<Global>(argument(arguments, 6), "a type").name);
    if (!type) refuse("a tensor without a type");
    return add({rebuild_tensor(arguments, type)});
  }
  if (name.starts_with("torch._utils._rebuild_parameter")) {
    return add({as<TensorValue>(argument(arguments, 0), "a tensor")});
  }
  if (name == "torch.Size") return add({as<Tuple>(argument(arguments, 0), "a tuple")});
  if (name == "torch.device") return add({device(arguments)});
  if (name == "builtins.set") return add({as<List>(argument(arguments, 0), "a list")});
  if (name == "_codecs.encode") return add({encode_latin1(arguments)});
  refuse(concat("it calls '", name, "'"));
}

TensorValue Calls::rebuild_tensor(const std::vector<Node*>& arguments,
                                  std::optional<ElementType> type) {
  const auto& storage = as<Storage>(argument(arguments, 0), "a storage");
  const auto offset = as<std::int64_t>(argument(arguments, 1), "an integer");
  TensorValue tensor{.shape = numbers(argument(arguments, 2)), .owner = options_.owner};
  const std::vector<std::int64_t> strides = numbers(argument(arguments, 3));
  if (!type) type = storage.type;
  if (!type) refuse("a tensor without a type");
  tensor.type = *type;

  const std::span<const std::byte> content = options_.storage(storage.key);
  const std::uint64_t unit = storage.type ? names_of(*storage.type).bytes : 1;
  if (content.size() != static_cast<std::uint64_t>(storage.count) * unit) {
    refuse(concat("storage '", storage.key, "' has ", content.size(), " bytes instead of ",
                  storage.count, " times ", unit));
  }
  const auto bytes = bytes_of(tensor.type, tensor.shape);
  if (!bytes || strides.size() != tensor.shape.size() || offset < 0) refuse("a tensor's shape");
  for (const std::int64_t stride : strides) {
    if (stride < 0) refuse("a tensor with a negative stride");
  }
  if (*bytes == 0) return tensor;

  const std::int64_t last = last_index(offset, tensor.shape, strides);
  const std::uint64_t size = names_of(tensor.type).bytes;
  if (static_cast<std::uint64_t>(last) >= content.size() / size) {
    refuse(concat("a tensor reaches to element ", last, " of storage '", storage.key,
                  "', which has ", content.size() / size));
  }
  if (!is_contiguous(tensor.shape, strides)) return compact(tensor, content, offset, strides);
  tensor.bytes = content.subspan(static_cast<std::uint64_t>(offset) * size, *bytes);
  return tensor;
}

TensorValue Calls::compact(const TensorValue& like, std::span<const std::byte> storage,
                           std::int64_t offset, const std::vector<std::int64_t>& strides) {
  const std::size_t size = names_of(like.type).bytes;
  const std::uint64_t bytes = bytes_of(like.type, like.shape).value();
  if (bytes > copies_left_) refuse(concat("a view of ", bytes, " bytes is too large to be copied"));
  copies_left_ -= bytes;
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
  std::vector<std::int64_t> index(like.shape.size(), 0);
  // Unsigned: on the way to the next element it may wrap around, and comes back.
  auto element = static_cast<std::uint64_t>(offset);
  for (std::uint64_t at = 0; at < bytes; at += size) {
    std::memcpy(memory.get() + at, storage.data() + element * size, size);
    for (std::size_t i = index.size(); i-- > 0;) {
      const auto stride = static_cast<std::uint64_t>(strides[i]);
      element += stride;
      if (++index[i] < like.shape[i]) break;
      element -= stride * static_cast<std::uint64_t>(like.shape[i]);
      index[i] = 0;
    }
  }
  TensorValue copy = like;
  copy.bytes = {memory.get(), bytes};
  copy.owner = memory;
  return copy;
}

}  // namespace lockstep::unpickling
