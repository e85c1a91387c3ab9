#pragma once

#include <map>
#include <string>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

namespace lockstep {

/// What a part of a training run (a model, an optimizer, a schedule) needs to go on as if it had
/// never stopped: tensors and small values, both by name.
///
/// A tensor here shares its memory with the live one, so a state that must not change while
/// training goes on is copied first (SnapshotStore does).
struct State {
  std::map<std::string, at::Tensor> tensors = {};
  nlohmann::json values = nlohmann::json::object();
};

}  // namespace lockstep
