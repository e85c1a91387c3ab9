#include <algorithm>

#include "lockstep/error.h"
#include "lockstep/torch_file.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const char* wanted) {
  throw InvalidArgument(concat("the value is not ", wanted));
}

template <typename Data>
const Data& as(const PyValue& value, const char* wanted) {
  if (const auto* data = std::get_if<Data>(&value.data())) return *data;
  refuse(wanted);
}

PyValue from_json(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::boolean:
      return value.get<bool>();
    case nlohmann::json::value_t::number_integer:
      return value.get<std::int64_t>();
    case nlohmann::json::value_t::number_unsigned: {
      const auto number = value.get<std::uint64_t>();
      if (number >> 63 != 0) return number;
      return static_cast<std::int64_t>(number);
    }
    case nlohmann::json::value_t::number_float:
      return value.get<double>();
    case nlohmann::json::value_t::string:
      return value.get<std::string>();
    case nlohmann::json::value_t::array: {
      PyValue::List list;
      for (const auto& item : value) list.items.push_back(from_json(item));
      return list;
    }
    case nlohmann::json::value_t::object: {
      PyValue::Dict dict;
      for (const auto& [key, item] : value.items()) dict.items.emplace_back(key, from_json(item));
      return dict;
    }
    case nlohmann::json::value_t::binary:
      throw InvalidArgument("binary JSON values cannot be saved; use a tensor");
    default:
      return {};
  }
}

nlohmann::json array_of(const std::vector<PyValue>& items) {
  nlohmann::json array = nlohmann::json::array();
  for (const PyValue& item : items) array.push_back(item.to_json());
  return array;
}

std::string key_text(const PyValue& key) {
  if (const auto* number = std::get_if<std::int64_t>(&key.data())) return std::to_string(*number);
  return key.to_string();
}

void add_to_state(State& state, nlohmann::json& values, const std::string& prefix,
                  const PyValue::Dict& dict) {
  for (const auto& [key, value] : dict.items) {
    const std::string name = key_text(key);
    if (const auto* tensor = std::get_if<at::Tensor>(&value.data())) {
      state.tensors[prefix + name] = *tensor;
    } else if (const auto* inner = std::get_if<PyValue::Dict>(&value.data())) {
      nlohmann::json inner_values = nlohmann::json::object();
      add_to_state(state, inner_values, concat(prefix, name, "."), *inner);
      if (!inner_values.empty() || inner->items.empty()) values[name] = std::move(inner_values);
    } else {
      values[name] = value.to_json();
    }
  }
}

}  // namespace

PyValue::PyValue(bool value) : data_(value) {}
PyValue::PyValue(int value) : data_(std::int64_t{value}) {}
PyValue::PyValue(std::int64_t value) : data_(value) {}
PyValue::PyValue(std::uint64_t value) : data_(value) {}
PyValue::PyValue(double value) : data_(value) {}
PyValue::PyValue(const char* value) : data_(std::string(value)) {}
PyValue::PyValue(std::string value) : data_(std::move(value)) {}
PyValue::PyValue(at::Tensor value) : data_(std::move(value)) {}
PyValue::PyValue(List value) : data_(std::move(value)) {}
PyValue::PyValue(Tuple value) : data_(std::move(value)) {}
PyValue::PyValue(Dict value) : data_(std::move(value)) {}
PyValue::PyValue(const nlohmann::json& value) : PyValue(from_json(value)) {}

PyValue::PyValue(const std::map<std::string, at::Tensor>& tensors) {
  Dict dict{.items = {}, .ordered = true};
  for (const auto& [name, tensor] : tensors) dict.items.emplace_back(name, tensor);
  data_ = std::move(dict);
}

PyValue::PyValue(const State& state) : PyValue(state.tensors) {
  Dict& dict = std::get<Dict>(data_);
  for (const auto& [name, value] : state.values.items()) dict.items.emplace_back(name, value);
}

PyValue::PyValue(const std::map<std::int64_t, std::map<std::string, at::Tensor>>& tensors) {
  Dict dict;
  for (const auto& [number, inner] : tensors) {
    Dict named;
    for (const auto& [name, tensor] : inner) named.items.emplace_back(name, tensor);
    dict.items.emplace_back(number, std::move(named));
  }
  data_ = std::move(dict);
}

PyValue PyValue::dict(std::initializer_list<std::pair<std::string, PyValue>> items) {
  Dict dict;
  for (const auto& [key, value] : items) dict.items.emplace_back(key, value);
  return dict;
}

bool PyValue::contains(const std::string& key) const {
  const auto& items = to_dict().items;
  return std::any_of(items.begin(), items.end(), [&](const auto& item) {
    const auto* text = std::get_if<std::string>(&item.first.data());
    return text != nullptr && *text == key;
  });
}

const PyValue& PyValue::at(const std::string& key) const {
  std::string known;
  for (const auto& [name, value] : to_dict().items) {
    const std::string text = key_text(name);
    if (text == key) return value;
    if (known.size() < 200) known += concat(known.empty() ? "" : ", ", text);
  }
  throw InvalidArgument(concat("there is no '", key, "'; there are: ", known));
}

const at::Tensor& PyValue::to_tensor() const {
  return as<at::Tensor>(*this, "a tensor");
}
std::int64_t PyValue::to_int() const {
  return as<std::int64_t>(*this, "an integer");
}
double PyValue::to_double() const {
  if (const auto* integer = std::get_if<std::int64_t>(&data_)) return static_cast<double>(*integer);
  return as<double>(*this, "a number");
}
const std::string& PyValue::to_string() const {
  return as<std::string>(*this, "a string");
}
const PyValue::Dict& PyValue::to_dict() const {
  return as<Dict>(*this, "a dict");
}

State PyValue::to_state() const {
  State state;
  add_to_state(state, state.values, "", to_dict());
  return state;
}

std::map<std::int64_t, std::map<std::string, at::Tensor>> PyValue::to_tensors_by_number() const {
  std::map<std::int64_t, std::map<std::string, at::Tensor>> result;
  for (const auto& [number, inner] : to_dict().items) {
    auto& tensors = result[number.to_int()];
    for (const auto& [name, tensor] : inner.to_dict().items) {
      tensors[name.to_string()] = tensor.to_tensor();
    }
  }
  return result;
}

nlohmann::json PyValue::to_json() const {
  return std::visit(
      [](const auto& data) -> nlohmann::json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Data, List> || std::is_same_v<Data, Tuple>) {
          return array_of(data.items);
        } else if constexpr (std::is_same_v<Data, Dict>) {
          nlohmann::json object = nlohmann::json::object();
          for (const auto& [key, value] : data.items) object[key_text(key)] = value.to_json();
          return object;
        } else if constexpr (std::is_same_v<Data, at::Tensor>) {
          refuse("free of tensors");
        } else {
          return data;
        }
      },
      data_);
}

}  // namespace lockstep
