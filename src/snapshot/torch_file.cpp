#include "lockstep/torch_file.h"

#include <map>
#include <tuple>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "archive/safetensors.h"
#include "archive/safetensors_file.h"
#include "archive/torch_archive.h"
#include "lockstep/error.h"
#include "snapshot/element_types.h"

namespace lockstep {
namespace {

// Brings tensors to the CPU, contiguous; the same tensor to the same copy.
class Exporter {
 public:
  TensorValue operator()(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) throw InvalidArgument(concat("tensor '", name, "' is undefined"));
    if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
      throw InvalidArgument(concat("tensor '", name, "' is sparse or quantized; save it dense"));
    }
    const auto identity = std::tuple(tensor.const_data_ptr(), tensor.sizes().vec(),
                                     tensor.strides().vec(), tensor.scalar_type());
    at::Tensor& here = copies_[identity];
    if (!here.defined()) here = tensor.detach().cpu().contiguous();
    return {.type = element_type_of(tensor.scalar_type(), name),
            .shape = tensor.sizes().vec(),
            .bytes = {static_cast<const std::byte*>(here.const_data_ptr()), here.nbytes()},
            .owner = std::make_shared<at::Tensor>(here)};
  }

 private:
  std::map<
      std::tuple<const void*, std::vector<std::int64_t>, std::vector<std::int64_t>, at::ScalarType>,
      at::Tensor>
      copies_;
};

Value export_value(const PyValue& value, Exporter& exporter, const std::string& name) {
  return std::visit(
      [&](const auto& data) -> Value {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, std::monostate>) {
          return {NoneValue{}};
        } else if constexpr (std::is_same_v<Data, at::Tensor>) {
          return {exporter(data, name)};
        } else if constexpr (std::is_same_v<Data, PyValue::List>) {
          ListValue list;
          for (const auto& item : data.items)
            list.items.push_back(export_value(item, exporter, name));
          return {std::move(list)};
        } else if constexpr (std::is_same_v<Data, PyValue::Tuple>) {
          TupleValue tuple;
          for (const auto& item : data.items)
            tuple.items.push_back(export_value(item, exporter, name));
          return {std::move(tuple)};
        } else if constexpr (std::is_same_v<Data, PyValue::Dict>) {
          DictValue dict{.items = {}, .ordered = data.ordered};
          for (const auto& [key, item] : data.items) {
            const auto* text = std::get_if<std::string>(&key.data());
            const std::string path =
                text != nullptr ? concat(name, name.empty() ? "" : ".", *text) : name;
            dict.items.push_back(
                {export_value(key, exporter, name), export_value(item, exporter, path)});
          }
          return {std::move(dict)};
        } else {
          return {data};
        }
      },
      value.data());
}

// Tensors of a file lie where they are read to; two names of one tensor stay one tensor.
at::Tensor import_tensor(const TensorValue& value) {
  const auto options = at::TensorOptions().dtype(scalar_type_of(value.type));
  if (value.bytes.empty()) return at::empty(value.shape, options);
  auto* data = const_cast<std::byte*>(value.bytes.data());
  if (reinterpret_cast<std::uintptr_t>(data) % names_of(value.type).bytes == 0) {
    return at::from_blob(
        data, value.shape, [owner = value.owner](void*) {}, options);
  }
  // A file may place it anywhere.
  const at::Tensor bytes =
      at::from_blob(data, {static_cast<std::int64_t>(value.bytes.size())}, at::kByte);
  return bytes.clone().view(scalar_type_of(value.type)).reshape(value.shape);
}

PyValue import_value(const Value& value) {
  return std::visit(
      [&](const auto& data) -> PyValue {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, NoneValue>) {
          return {};
        } else if constexpr (std::is_same_v<Data, TensorValue>) {
          return import_tensor(data);
        } else if constexpr (std::is_same_v<Data, BytesValue>) {
          return data.bytes;
        } else if constexpr (std::is_same_v<Data, ListValue>) {
          PyValue::List list;
          for (const Value& item : data.items) list.items.push_back(import_value(item));
          return list;
        } else if constexpr (std::is_same_v<Data, TupleValue>) {
          PyValue::Tuple tuple;
          for (const Value& item : data.items) tuple.items.push_back(import_value(item));
          return tuple;
        } else if constexpr (std::is_same_v<Data, DictValue>) {
          PyValue::Dict dict{.items = {}, .ordered = data.ordered};
          for (const DictItem& item : data.items) {
            dict.items.emplace_back(import_value(item.key), import_value(item.value));
          }
          return dict;
        } else {
          return data;
        }
      },
      value.data);
}

}  // namespace

void save_pt(const std::string& path, const PyValue& value) {
  Exporter exporter;
  write_torch_archive(path, export_value(value, exporter, ""));
}

PyValue load_pt(const std::string& path) {
  const FileContent content = FileContent::read(path);
  try {
    return import_value(read_torch_archive(content));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", path, "' cannot be read: ", error.what()));
  }
}

void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors) {
  Exporter exporter;
  std::vector<TensorView> views;
  std::vector<TensorValue> values;  // keep the copies
  for (const auto& [name, tensor] : tensors) {
    values.push_back(exporter(tensor, name));
    views.push_back({{.name = name, .type = values.back().type, .shape = values.back().shape},
                     values.back().bytes});
  }
  write_safetensors_file(path, views, {{"format", "pt"}});
}

std::map<std::string, at::Tensor> load_safetensors(const std::string& path) {
  const FileContent content = FileContent::read(path);
  std::map<std::string, at::Tensor> tensors;
  try {
    for (const TensorView& view : parse_safetensors(content.bytes()).tensors) {
      tensors[view.name] = import_tensor(
          {.type = view.type, .shape = view.shape, .bytes = view.bytes, .owner = content.owner()});
    }
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("'", path, "' cannot be read: ", error.what()));
  }
  return tensors;
}

}  // namespace lockstep
