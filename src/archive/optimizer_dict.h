#pragma once

#include "archive/checkpoint.h"
#include "archive/value.h"

namespace lockstep {

/// Whether a part is the state of an optimizer: it has "groups" with lists of names.
bool is_optimizer(const CheckpointPart& part);

/// The state_dict() of Python's torch.optim: parameters by their number, counted through all
/// groups. The names go along as "param_names" of each group, where torch keeps them too.
DictValue optimizer_to_dict(const CheckpointPart& part);

/// The reverse; parameters without names are called by their numbers. Throws InvalidArgument when
/// the value is not of this form.
CheckpointPart optimizer_from_dict(const DictValue& dict);

/// JSON to Python's values and back; tuples become arrays. The latter throws InvalidArgument for
/// tensors and bytes.
Value value_of(const nlohmann::json& json);
nlohmann::json json_of(const Value& value);

}  // namespace lockstep
