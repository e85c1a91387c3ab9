// What a ShardedEngine holds as states in parts, and how states become its parts.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "comm/name_lists.h"
#include "lockstep/deferred.h"
#include "lockstep/error.h"
#include "shard/engine.h"

namespace lockstep {
namespace {

using nlohmann::json;

/// A parameter's part on this rank, and which of the parameter it is.
struct HeldPart {
  at::Tensor tensor;
  TensorRange range;
  /// What this rank saves of it: with replicas each holder of a part saves a share.
  std::int64_t saved_begin = 0, saved_count = 0;  // in the part

  at::Tensor saved(const at::Tensor& of_part) const {
    return of_part.narrow(0, saved_begin, saved_count);
  }
  TensorRange saved_range() const {
    return {.shape = range.shape, .begin = range.begin + saved_begin, .count = saved_count};
  }
};

std::map<std::string, HeldPart> held_parts(const ShardedEngine::Impl& impl) {
  std::map<std::string, HeldPart> parts;
  const ShardExchange& exchange = *impl.exchange;
  for (const auto& unit : impl.units) {
    if (!unit) continue;
    const auto places = unit->layout().pieces(exchange.part());
    const std::int64_t share = unit->layout().share_length();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const NamedParameter& piece = unit->pieces()[i];
      const FlatLayout::Piece& place = places[i];
      const std::int64_t begin =
          std::clamp(exchange.copy() * share - place.at, std::int64_t{0}, place.count);
      const std::int64_t end =
          std::clamp((exchange.copy() + 1) * share - place.at, std::int64_t{0}, place.count);
      parts[piece.name] = {.tensor = piece.tensor.detach(),
                           .range = {.shape = unit->parameter(place.parameter).sizes().vec(),
                                     .begin = place.begin,
                                     .count = place.count},
                           .saved_begin = begin,
                           .saved_count = end - begin};
    }
  }
  return parts;
}

// Buffers and frozen parameters, which every rank has whole.
std::map<std::string, at::Tensor> whole_tensors(const ShardedEngine::Impl& impl) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : impl.module->named_parameters()) {
    if (item.value().defined() && !item.value().requires_grad()) tensors[item.key()] = item.value();
  }
  for (const auto& item : impl.module->named_buffers()) {
    if (item.value().defined()) tensors[item.key()] = item.value();
  }
  return tensors;
}

json range_json(const TensorRange& range) {
  return {{"shape", range.shape}, {"begin", range.begin}};
}

// A rank's part of what is given, which is the whole or that part already.
at::Tensor part_of(const std::string& name, const at::Tensor& given, const TensorRange& range) {
  if (given.dim() == 1 && given.numel() == range.count) return given;
  if (given.sizes().vec() != range.shape) {
    throw InvalidArgument(concat("the state does not fit: '", name, "' is ", given.sizes(),
                                 " in it, here it is ", at::IntArrayRef(range.shape)));
  }
  return given.reshape({-1}).narrow(0, range.begin, range.count);
}

}  // namespace

// Of each value this rank's part stays.
void ShardedEngine::Impl::make_parameters(const DeferredModule& source) {
  const c10::AutoGradMode no_graph(false);
  const std::map<std::string, HeldPart> parts = held_parts(*this);
  std::set<std::string> missing;
  for (const auto& unit : units) {
    for (std::size_t i = 0; unit && i < unit->parameter_count(); ++i) {
      missing.insert(unit->parameter_name(i));
    }
  }
  source.make_parameters([&](const std::string& name, const at::Tensor& value) {
    missing.erase(name);
    at::Tensor all = value;
    if (options.init_sync) {
      all = value.to(options.device);
      exchange->group().broadcast(all);
    }
    const auto part = parts.find(name);
    if (part != parts.end()) part->second.tensor.copy_(part_of(name, all, part->second.range));
  });
  if (!missing.empty()) {
    throw InvalidArgument(concat("ShardedDataParallel: ", module->name(), " makes no value for '",
                                 *missing.begin(), "'"));
  }
  for (const auto& unit : units) {
    if (unit) unit->outdate();
  }
}

std::vector<ParamGroup> ShardedEngine::parts_of(std::vector<ParamGroup> groups,
                                                ShardPart part) const {
  std::map<std::string, at::Tensor> pieces;
  for (const NamedParameter& piece : parameters(part)) pieces[piece.name] = piece.tensor;
  for (ParamGroup& group : groups) {
    std::vector<NamedParameter> held;
    for (const NamedParameter& each : group.parameters) {
      const auto piece = pieces.find(each.name);
      if (piece != pieces.end()) held.push_back({.name = each.name, .tensor = piece->second});
    }
    group.parameters = std::move(held);
  }
  return groups;
}

TensorRanges ShardedEngine::ranges() const {
  TensorRanges ranges;
  for (const auto& unit : impl_->units) {
    if (!unit) continue;
    for (std::size_t i = 0; i < unit->parameter_count(); ++i) {
      ranges[unit->parameter_name(i)] = {.shape = unit->parameter(i).sizes().vec()};
    }
  }
  for (const auto& [name, part] : held_parts(*impl_)) ranges[name] = part.range;
  return ranges;
}

State ShardedEngine::state() const {
  State state;
  json& ranges = state.values[kStateRanges] = json::object();
  for (const auto& [name, part] : held_parts(*impl_)) {
    if (part.saved_count == 0) continue;
    state.tensors[name] = part.saved(part.tensor);
    ranges[name] = range_json(part.saved_range());
  }
  if (impl_->exchange->group().rank() != 0) return state;
  for (const auto& [name, tensor] : whole_tensors(*impl_)) state.tensors[name] = tensor.detach();
  return state;
}

State ShardedEngine::part_state(ShardPart part) const {
  State state;
  for (const NamedParameter& piece : parameters(part)) {
    state.tensors[piece.name] = piece.tensor.detach();
  }
  return state;
}

State ShardedEngine::held_state(ShardPart part) const {
  State state = part_state(part);
  for (const auto& [name, tensor] : whole_tensors(*impl_)) state.tensors[name] = tensor.detach();
  return state;
}

void ShardedEngine::load_state(const State& state) {
  const c10::AutoGradMode no_graph(false);
  const std::map<std::string, HeldPart> parts = held_parts(*impl_);
  const std::map<std::string, at::Tensor> wholes = whole_tensors(*impl_);
  const TensorRanges all = ranges();
  std::set<std::string> missing, others;
  for (const auto& item : impl_->module->named_parameters()) others.insert(item.key());
  for (const auto& [name, part] : parts) missing.insert(name);
  for (const auto& [name, tensor] : wholes) missing.insert(name);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& [name, given] : state.tensors) {
    if (const auto part = parts.find(name); part != parts.end()) {
      copies.emplace_back(part->second.tensor, part_of(name, given, part->second.range));
    } else if (const auto whole = wholes.find(name); whole != wholes.end()) {
      if (whole->second.sizes() != given.sizes()) {
        throw InvalidArgument(concat("the state does not fit: '", name, "' is ", given.sizes(),
                                     " in it, here it is ", whole->second.sizes()));
      }
      copies.emplace_back(whole->second.detach(), given);
    } else if (!others.contains(name)) {  // another name of a tied one
      throw InvalidArgument(
          concat("the state does not fit: '", name, "' is not in ", impl_->module->name()));
    }
    missing.erase(name);
  }
  if (!missing.empty()) {
    throw InvalidArgument(concat("the state does not fit: it lacks '", *missing.begin(), "'"));
  }
  for (const auto& [to, from] : copies) to.copy_(from);
  for (const auto& unit : impl_->units) {
    if (unit) unit->outdate();
  }
}

// Names of all ranks' parameters, in the module's order, by which Python numbers them.
State ShardedEngine::optimizer_state(const Optimizer& optimizer) const {
  State state = optimizer.state();
  const std::map<std::string, HeldPart> parts = held_parts(*impl_);
  json& ranges = state.values[kStateRanges] = json::object();
  std::map<std::string, at::Tensor> saved;
  for (const auto& [name, tensor] : state.tensors) {
    const auto part = parts.find(name.substr(0, name.rfind('.')));
    if (part == parts.end() || part->second.saved_count == 0) continue;
    const TensorRange range = part->second.saved_range();
    if (tensor.dim() == 1 && tensor.numel() == part->second.range.count) {
      saved[name] = part->second.saved(tensor);
      ranges[name] = range_json(range);
    } else if (range.begin == 0) {  // a counter: of the rank that saves the parameter's beginning
      saved[name] = tensor;
    }
  }
  state.tensors = std::move(saved);

  std::vector<std::string> order;
  for (const auto& item : impl_->module->named_parameters()) order.push_back(item.key());
  json groups = json::array();
  for (const json& group : state.values.at("groups")) groups.push_back(group.at("params"));
  const json joined = join_name_lists(
      impl_->exchange->group(), groups, order,
      "ShardedDataParallel: the optimizers of ranks have different numbers of groups; make them "
      "from parts_of() or decay_groups(), which leave groups on every rank");
  for (std::size_t i = 0; i < joined.size(); ++i) {
    state.values.at("groups")[i]["params"] = joined[i];
  }
  return state;
}

void ShardedEngine::load_optimizer_state(Optimizer& optimizer, const State& state) const {
  const std::map<std::string, HeldPart> parts = held_parts(*impl_);
  State held{.tensors = {}, .values = state.values};
  held.values.erase(kStateRanges);
  for (const auto& [name, given] : state.tensors) {
    const auto part = parts.find(name.substr(0, name.rfind('.')));
    if (part == parts.end()) continue;  // another rank's
    const bool is_counter = name.ends_with(".step");
    held.tensors[name] = is_counter ? given : part_of(name, given, part->second.range);
  }
  const TensorRanges all = ranges();
  for (json& group : held.values.at("groups")) {
    json mine = json::array();
    for (const json& name : group.at("params")) {
      const auto text = name.get<std::string>();
      if (!all.contains(text)) {
        throw InvalidArgument(concat("the optimizer's state does not fit: it has '", text,
                                     "', which is not trained here"));
      }
      if (parts.contains(text)) mine.push_back(name);
    }
    group["params"] = std::move(mine);
  }
  optimizer.load_state(held);
}

void ShardedEngine::join(World& world) {
  impl_->forget_backward();
  // Everything is gathered again, by ranks that were interrupted at different places and by new
  // ones: all begin without knowing the order, so that it is the same.
  impl_->order.clear();
  for (const auto& unit : impl_->units) {
    if (unit) unit->drop_transfers();
  }
  impl_->exchange->join(world);
}

void ShardedEngine::keep_whole() {
  for (const auto& unit : impl_->units) {
    if (unit) unit->keep_whole();
  }
}

}  // namespace lockstep
