#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "lockstep/state.h"

namespace lockstep {

/// What torch.save puts into a file: None, numbers, strings, lists, tuples, dicts and tensors,
/// nested.
///
///     save_pt("snapshot.pt", PyValue::dict({{"MODEL_STATE", module_state(model)},
///                                           {"EPOCHS_RUN", 10}}));
///     const PyValue file = load_pt("snapshot.pt");
///     load_module_state(model, file.at("MODEL_STATE").to_state());
///
/// Integers beyond 63 bits, bytes and sets are read and not kept apart from their nearest kin here:
/// unsigned integers, strings and lists.
class PyValue {
 public:
  struct List {
    std::vector<PyValue> items;
  };
  struct Tuple {
    std::vector<PyValue> items;
  };
  /// In the order of insertion. `ordered`: Python's OrderedDict, which state_dict() returns.
  struct Dict {
    std::vector<std::pair<PyValue, PyValue>> items;
    bool ordered = false;
  };
  using Data = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string,
                            List, Tuple, Dict, at::Tensor>;

  PyValue() = default;  // None
  PyValue(bool value);
  PyValue(int value);
  PyValue(std::int64_t value);
  PyValue(std::uint64_t value);
  PyValue(double value);
  PyValue(const char* value);
  PyValue(std::string value);
  PyValue(at::Tensor value);
  PyValue(List value);
  PyValue(Tuple value);
  PyValue(Dict value);
  /// A state_dict: an OrderedDict of the tensors. Values of the state, where it has any, follow.
  PyValue(const State& state);
  PyValue(const std::map<std::string, at::Tensor>& tensors);
  /// By number, as in the state_dict of an optimizer (PythonOptimizerState::state).
  PyValue(const std::map<std::int64_t, std::map<std::string, at::Tensor>>& tensors);
  /// Objects become dicts and arrays lists.
  PyValue(const nlohmann::json& value);

  static PyValue dict(std::initializer_list<std::pair<std::string, PyValue>> items);

  const Data& data() const { return data_; }

  /// Of a dict. at() throws InvalidArgument, with the keys that there are, when this one is not.
  bool contains(const std::string& key) const;
  const PyValue& at(const std::string& key) const;

  /// Each throws InvalidArgument when the value is of another kind.
  const at::Tensor& to_tensor() const;
  std::int64_t to_int() const;
  double to_double() const;  // integers too
  const std::string& to_string() const;
  const Dict& to_dict() const;

  /// A dict as a State: tensors to its tensors, also from nested dicts, whose names are joined by
  /// dots; everything else to its values.
  State to_state() const;
  /// The reverse of the constructors above.
  std::map<std::int64_t, std::map<std::string, at::Tensor>> to_tensors_by_number() const;
  nlohmann::json to_json() const;  // tuples become arrays; throws InvalidArgument for tensors

 private:
  Data data_;
};

/// Writes a file that Python's torch.load(path, weights_only=True) reads. Tensors are stored as
/// what they are, contiguous and on the CPU; those that share their memory and shape are stored
/// once. The file is there completely or not at all, also after a crash. Throws InvalidArgument for
/// what cannot be stored and SystemError.
void save_pt(const std::string& path, const PyValue& value);

/// Reads a file of Python's torch.save, or of save_pt(). Nothing in it is ever executed: a file
/// that needs more than containers, numbers and tensors is refused, by the name that it asks for.
/// Tensors are on the CPU; two that shared their memory do so again. Throws InvalidArgument and
/// SystemError.
PyValue load_pt(const std::string& path);

/// Writes and reads a file of tensors in the format safetensors, with the same care.
void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors);
std::map<std::string, at::Tensor> load_safetensors(const std::string& path);

}  // namespace lockstep
