// What a Pipeline and its optimizers hold as states for snapshots, under the names of the whole
// model.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "comm/name_lists.h"
#include "lockstep/error.h"
#include "pipeline/pipeline_impl.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr const char* kNextStep = "next_step";

// The part's own name in place of "PART" in "PART.weight".
std::string name_in_model(const std::string& name, const std::vector<PipelinePart>& list) {
  const std::size_t dot = name.find('.');
  const auto part = std::ranges::find(list, name.substr(0, dot), &PipelinePart::name);
  if (part == list.end() || !part->saved_as) return name;
  const std::string rest = name.substr(dot + 1);
  return part->saved_as->empty() ? rest : concat(*part->saved_as, ".", rest);
}

// Parameters and buffers, each once.
std::vector<std::pair<std::string, at::Tensor>> tensors_in(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  std::set<const c10::TensorImpl*> seen;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
      all.emplace_back(item.key(), item.value());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return all;
}

bool are_tied(const std::vector<std::vector<std::string>>& ties, const std::string& one,
              const std::string& other) {
  return std::ranges::any_of(ties, [&](const std::vector<std::string>& tie) {
    return std::ranges::find(tie, one) != tie.end() && std::ranges::find(tie, other) != tie.end();
  });
}

// What was read by ranges has one dimension.
at::Tensor fitted(const std::string& name, const at::Tensor& given, at::IntArrayRef shape) {
  const bool is_flat = given.dim() == 1 && given.numel() == c10::multiply_integers(shape);
  if (!is_flat && given.sizes() != shape) {
    throw InvalidArgument(concat("the state does not fit: '", name, "' is ", given.sizes(),
                                 " in it, here it is ", shape));
  }
  return given.reshape(shape);
}

}  // namespace

void Pipeline::Impl::agree_on_saved_names(const std::vector<PipelinePart>& list) {
  json mine = json::array();
  for (const auto& [name, tensor] : tensors_in(*module)) {
    held.push_back({.name = name, .saved_name = name_in_model(name, list), .tensor = tensor});
    mine.push_back({{"name", name},
                    {"saved_name", held.back().saved_name},
                    {"shape", tensor.sizes().vec()},
                    {"trained", tensor.requires_grad()}});
  }
  std::map<std::string, std::string> first;  // the name in its stage of what is saved under a name
  int of_stage = 0;
  for (const json& of_rank : group.all_gather_json(mine)) {
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      const auto name = of_rank[i].at("name").get<std::string>();
      const auto saved_name = of_rank[i].at("saved_name").get<std::string>();
      const auto [known, is_new] = first.emplace(saved_name, name);
      if (!is_new && !are_tied(options.ties, known->second, name)) {
        throw InvalidArgument(concat("Pipeline: '", known->second, "' and '", name,
                                     "' are both called '", saved_name,
                                     "' in the whole model, and are not tied; see saved_as"));
      }
      if (of_stage == stage) held[i].is_first = is_new;
      if (!is_new) continue;
      saved.push_back({.name = saved_name,
                       .shape = of_rank[i].at("shape").get<std::vector<std::int64_t>>(),
                       .trained = of_rank[i].at("trained").get<bool>()});
    }
    ++of_stage;
  }
}

bool Pipeline::Impl::writes_state() const {
  return !options.data_group.is_member() || options.data_group.rank() == 0;
}

// By the name in the whole model; two where a stage has both ends of a tie.
std::multimap<std::string, const Pipeline::Impl::HeldTensor*> Pipeline::Impl::held_by_saved_name()
    const {
  std::multimap<std::string, const HeldTensor*> found;
  for (const HeldTensor& each : held) found.emplace(each.saved_name, &each);
  return found;
}

std::vector<ParamGroup> Pipeline::decay_groups(double weight_decay) const {
  ParamGroup decayed{.parameters = {}, .weight_decay = weight_decay};
  ParamGroup others{.parameters = {}, .weight_decay = 0.0};
  for (const StageParameter& each : impl_->parameters) {
    (each.tensor.dim() >= 2 ? decayed : others)
        .parameters.push_back({.name = each.name, .tensor = each.tensor});
  }
  const auto whole_model_has = [&](bool matrices) {
    return std::ranges::any_of(impl_->saved, [&](const Impl::SavedTensor& each) {
      return each.trained && (each.shape.size() >= 2) == matrices;
    });
  };
  std::vector<ParamGroup> groups;
  if (whole_model_has(true)) groups.push_back(std::move(decayed));
  if (whole_model_has(false)) groups.push_back(std::move(others));
  return groups;
}

TensorRanges Pipeline::ranges() const {
  TensorRanges ranges;
  for (const Impl::SavedTensor& each : impl_->saved) ranges[each.name] = {.shape = each.shape};
  for (const Impl::HeldTensor& each : impl_->held) {
    ranges.at(each.saved_name).count = each.tensor.numel();
  }
  return ranges;
}

State Pipeline::state() const {
  State state;
  state.values[kStateRanges] = json::object();  // each tensor is whole, on one rank
  state.values[kNextStep] = impl_->next_step;
  if (!impl_->writes_state()) return state;
  for (const Impl::HeldTensor& each : impl_->held) {
    if (each.is_first) state.tensors[each.saved_name] = each.tensor.detach();
  }
  return state;
}

void Pipeline::load_state(const State& state) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const Impl::HeldTensor& each : impl_->held) {
    const auto given = state.tensors.find(each.saved_name);
    if (given == state.tensors.end()) {
      if (each.tensor.numel() == 0) continue;
      throw InvalidArgument(
          concat("the state does not fit: it lacks '", each.saved_name, "' of this stage"));
    }
    copies.emplace_back(each.tensor.detach(),
                        fitted(each.saved_name, given->second, each.tensor.sizes()));
  }
  const TensorRanges known = ranges();
  for (const auto& [name, tensor] : state.tensors) {
    if (known.contains(name)) continue;
    throw InvalidArgument(
        concat("the state does not fit: '", name, "' is in no stage of this pipeline"));
  }
  for (const auto& [to, from] : copies) to.copy_(from);
  if (state.values.contains(kNextStep)) {
    impl_->next_step = state.values.at(kNextStep).get<std::int64_t>();
  }
}

State Pipeline::optimizer_state(const Optimizer& optimizer) const {
  const State own = optimizer.state();
  State state{.tensors = {}, .values = own.values};
  state.values[kStateRanges] = json::object();
  std::map<std::string, const Impl::HeldTensor*> by_name;
  for (const Impl::HeldTensor& each : impl_->held) by_name[each.name] = &each;
  for (const auto& [name, tensor] : own.tensors) {
    const std::size_t dot = name.rfind('.');
    const auto found = by_name.find(name.substr(0, dot));
    if (found == by_name.end()) {
      throw InvalidArgument(
          concat("Pipeline: the optimizer has '", name, "', which is of no parameter here"));
    }
    if (!found->second->is_first || !impl_->writes_state()) continue;
    state.tensors[found->second->saved_name + name.substr(dot)] = tensor;
  }

  json mine = json::array();
  for (const json& group : own.values.at("groups")) {
    json names = json::array();
    for (const json& name : group.at("params")) {
      const auto found = by_name.find(name.get<std::string>());
      if (found != by_name.end()) names.push_back(found->second->saved_name);
    }
    mine.push_back(std::move(names));
  }
  std::vector<std::string> order;
  for (const Impl::SavedTensor& each : impl_->saved) order.push_back(each.name);
  const json joined = join_name_lists(
      impl_->group, mine, order,
      "Pipeline: the optimizers of stages have different numbers of groups; make them from "
      "decay_groups() of the pipeline, which leaves groups on every stage");
  for (std::size_t i = 0; i < joined.size(); ++i) {
    state.values.at("groups")[i]["params"] = joined[i];
  }
  return state;
}

void Pipeline::load_optimizer_state(Optimizer& optimizer, const State& state) const {
  const auto mine = impl_->held_by_saved_name();
  State own{.tensors = {}, .values = state.values};
  own.values.erase(kStateRanges);
  for (const auto& [name, given] : state.tensors) {
    const std::size_t dot = name.rfind('.');
    const auto [first, last] = mine.equal_range(name.substr(0, dot));
    for (auto each = first; each != last; ++each) {
      const Impl::HeldTensor& held = *each->second;
      own.tensors[held.name + name.substr(dot)] =
          name.ends_with(".step") ? given : fitted(name, given, held.tensor.sizes());
    }
  }
  const TensorRanges known = ranges();
  for (json& group : own.values.at("groups")) {
    json params = json::array();
    for (const json& name : group.at("params")) {
      const auto text = name.get<std::string>();
      if (!known.contains(text)) {
        throw InvalidArgument(concat("the optimizer's state does not fit: it has '", text,
                                     "', which is in no stage of this pipeline"));
      }
      const auto [first, last] = mine.equal_range(text);
      for (auto each = first; each != last; ++each) params.push_back(each->second->name);
    }
    group["params"] = std::move(params);
  }
  optimizer.load_state(own);
}

}  // namespace lockstep
