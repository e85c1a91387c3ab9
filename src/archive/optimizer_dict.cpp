#include "archive/optimizer_dict.h"

#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

Value text(const std::string& value) {
  return {value};
}

const Value& field(const DictValue& dict, const char* name) {
  if (const Value* value = dict.find(name)) return *value;
  throw InvalidArgument(concat("the state of an optimizer has no '", name, "'"));
}

template <typename Data>
const Data& as(const Value& value, const char* what) {
  if (const auto* data = std::get_if<Data>(&value.data)) return *data;
  throw InvalidArgument(concat("the state of an optimizer has something else than ", what));
}

// "layer.weight.exp_avg" belongs to the parameter "layer.weight" if there is one of that name.
std::map<std::string, DictValue> tensors_by_parameter(const CheckpointPart& part) {
  std::map<std::string, DictValue> result;
  for (const auto& [name, tensor] : part.tensors) {
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) {
      throw InvalidArgument(concat("the optimizer's tensor '", name, "' belongs to no parameter"));
    }
    result[name.substr(0, dot)].items.push_back({text(name.substr(dot + 1)), {tensor}});
  }
  return result;
}

}  // namespace

bool is_optimizer(const CheckpointPart& part) {
  const auto groups = part.values.find("groups");
  if (groups == part.values.end() || !groups->is_array()) return false;
  for (const json& group : *groups) {
    if (!group.is_object() || !group.contains("params")) return false;
  }
  return true;
}

DictValue optimizer_to_dict(const CheckpointPart& part) {
  auto tensors = tensors_by_parameter(part);
  DictValue state;
  ListValue groups;
  std::int64_t number = 0;
  for (json group : part.values.at("groups")) {
    ListValue numbers, names;
    for (const json& name : group.at("params")) {
      names.items.push_back(text(name.get<std::string>()));
      numbers.items.push_back({number});
      const auto found = tensors.find(name.get<std::string>());
      if (found != tensors.end()) {
        state.items.push_back({{number}, {std::move(found->second)}});
        tensors.erase(found);
      }
      ++number;
    }
    group.erase("params");
    DictValue options = std::get<DictValue>(value_of(group).data);
    options.items.push_back({text("params"), {std::move(numbers)}});
    options.items.push_back({text("param_names"), {std::move(names)}});
    groups.items.push_back({std::move(options)});
  }
  if (!tensors.empty()) {
    throw InvalidArgument(concat("the optimizer has state of '", tensors.begin()->first,
                                 "', which is in none of its groups"));
  }
  DictValue dict;
  dict.items.push_back({text("state"), {std::move(state)}});
  dict.items.push_back({text("param_groups"), {std::move(groups)}});
  // torch ignores what it does not know; lockstep finds here what kind of optimizer it was.
  for (const auto& [name, value] : part.values.items()) {
    if (name != "groups") dict.items.push_back({text(name), value_of(value)});
  }
  return dict;
}

CheckpointPart optimizer_from_dict(const DictValue& dict) {
  CheckpointPart part;
  std::map<std::int64_t, std::string> names;
  json groups = json::array();
  for (const Value& each : as<ListValue>(field(dict, "param_groups"), "a list of groups").items) {
    const auto& options = as<DictValue>(each, "groups");
    json group = json::object();
    for (const DictItem& item : options.items) {
      const std::string& name = as<std::string>(item.key, "named options");
      if (name != "params" && name != "param_names") group[name] = json_of(item.value);
    }
    const auto& numbers = as<ListValue>(field(options, "params"), "numbers of parameters").items;
    const Value* given = options.find("param_names");
    group["params"] = json::array();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto number = as<std::int64_t>(numbers[i], "numbers of parameters");
      std::string name = std::to_string(number);
      if (given != nullptr) {
        const auto& list = as<ListValue>(*given, "names of parameters").items;
        if (i < list.size()) name = as<std::string>(list[i], "names of parameters");
      }
      names[number] = name;
      group["params"].push_back(name);
    }
    groups.push_back(std::move(group));
  }
  for (const DictItem& item : as<DictValue>(field(dict, "state"), "a dict of states").items) {
    const auto number = as<std::int64_t>(item.key, "numbers of parameters");
    const std::string name = names.contains(number) ? names[number] : std::to_string(number);
    for (const DictItem& tensor : as<DictValue>(item.value, "states").items) {
      const std::string& slot = as<std::string>(tensor.key, "named tensors");
      if (const auto* data = std::get_if<TensorValue>(&tensor.value.data)) {
        part.tensors[concat(name, ".", slot)] = *data;
      }
    }
  }
  for (const DictItem& item : dict.items) {
    const std::string& name = as<std::string>(item.key, "named values");
    if (name != "state" && name != "param_groups") part.values[name] = json_of(item.value);
  }
  part.values["groups"] = std::move(groups);
  return part;
}

Value value_of(const json& value) {
  switch (value.type()) {
    case json::value_t::boolean:
      return {value.get<bool>()};
    case json::value_t::number_integer:
      return {value.get<std::int64_t>()};
    case json::value_t::number_unsigned: {
      const auto number = value.get<std::uint64_t>();
      if (number >> 63 != 0) return {number};
      return {static_cast<std::int64_t>(number)};
    }
    case json::value_t::number_float:
      return {value.get<double>()};
    case json::value_t::string:
      return {value.get<std::string>()};
    case json::value_t::array: {
      ListValue list;
      for (const json& item : value) list.items.push_back(value_of(item));
      return {std::move(list)};
    }
    case json::value_t::object: {
      DictValue dict;
      for (const auto& [key, item] : value.items())
        dict.items.push_back({text(key), value_of(item)});
      return {std::move(dict)};
    }
    case json::value_t::binary:
      throw InvalidArgument("a value is binary");
    default:
      return {NoneValue{}};
  }
}

json json_of(const Value& value) {
  const auto array = [](const std::vector<Value>& items) {
    json result = json::array();
    for (const Value& item : items) result.push_back(json_of(item));
    return result;
  };
  return std::visit(
      [&](const auto& data) -> json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, NoneValue>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Data, ListValue> || std::is_same_v<Data, TupleValue>) {
          return array(data.items);
        } else if constexpr (std::is_same_v<Data, DictValue>) {
          json object = json::object();
          for (const DictItem& item : data.items) {
            const auto* number = std::get_if<std::int64_t>(&item.key.data);
            const auto* name = std::get_if<std::string>(&item.key.data);
            LOCKSTEP_CHECK(number != nullptr || name != nullptr, "the key of a dict");
            object[name != nullptr ? *name : std::to_string(*number)] = json_of(item.value);
          }
          return object;
        } else if constexpr (std::is_same_v<Data, TensorValue>) {
          throw InvalidArgument("a tensor stands where a plain value is expected");
        } else if constexpr (std::is_same_v<Data, BytesValue>) {
          throw InvalidArgument("bytes stand where a plain value is expected");
        } else {
          return data;
        }
      },
      value.data);
}

}  // namespace lockstep
