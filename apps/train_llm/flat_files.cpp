#include "flat_files.h"

#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>
#include <variant>

#include "core/durable_file.h"
#include "lockstep/error.h"
#include "lockstep/torch_file.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using lockstep::PyValue;
using lockstep::Snapshot;
using lockstep::State;
using nlohmann::json;

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbeddings = "wte.weight";
constexpr std::string_view kBody = "transformer.";

PyValue model_dict(const State& model, const FlatFormat& format) {
  PyValue::Dict dict{.items = {}, .ordered = true};
  const auto add = [&](std::string_view name, const at::Tensor& tensor) {
    dict.items.emplace_back(concat(format.prefix, name), tensor);
  };
  for (const auto& [name, tensor] : model.tensors) {
    add(name == kHead ? name : concat(kBody, name), tensor);
  }
  if (format.tied_head) add(kHead, model.tensors.at(std::string(kEmbeddings)));
  return dict;
}

// Python's scheduler has set the next step's learning rate by the time that the tutorial saves.
json groups_for_python(json groups, const lockstep::LRSchedule& schedule, std::int64_t step) {
  for (json& group : groups) {
    const auto initial = group.value("initial_lr", group.at("lr").get<double>());
    group["initial_lr"] = initial;
    group["lr"] = schedule.lr(step, initial);
  }
  return groups;
}

// The members of Python's object but for its optimizer: of CosineAnnealingLR where that is what the
// schedule is, else of LambdaLR, with which Python programs write warm-up.
json schedule_dict(const lockstep::LRScheduleOptions& options, const json& groups,
                   std::int64_t step) {
  json base = json::array(), last = json::array(), lambdas = json::array();
  for (const json& group : groups) {
    base.push_back(group.at("initial_lr"));
    last.push_back(group.at("lr"));
    lambdas.push_back(nullptr);
  }
  json dict = {{"base_lrs", base},
               {"last_epoch", step},
               {"_step_count", step + 1},
               {"_is_initial", false},
               {"_get_lr_called_within_step", false},
               {"_last_lr", last}};
  const auto* cosine = std::get_if<lockstep::CosineSchedule>(&options);
  if (cosine != nullptr && cosine->warmup_steps == 0) {
    dict["T_max"] = cosine->total_steps;
    dict["eta_min"] = base.at(0).get<double>() * cosine->min_factor;
  } else {
    dict["lr_lambdas"] = lambdas;
  }
  return dict;
}

json read_state(const std::string& path) {
  std::ifstream file(path);
  if (!file) lockstep::throw_errno(concat("cannot open ", path));
  const json state = json::parse(file, nullptr, /*allow_exceptions=*/false);
  for (const char* key : {"epoch", "global_step", "epoch_step"}) {
    if (!state.is_object() || !state.contains(key) || !state[key].is_number_integer() ||
        state[key].get<std::int64_t>() < 0) {
      throw InvalidArgument(
          concat(path, " has no number '", key, "': it is not the state.json of a run"));
    }
  }
  return state;
}

// Names as Gpt2 has them, whatever wrapped the model in Python.
State model_state(const PyValue& file, bool tied_head) {
  State state;
  for (auto& [full_name, tensor] : file.to_state().tensors) {
    std::string_view name = full_name;
    for (const std::string_view prefix :
         {std::string_view("_orig_mod."), std::string_view("module."),
          std::string_view("_orig_mod."), kBody}) {
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    }
    // Masks that old versions of transformers kept as buffers, and the head that is no tensor of
    // its own.
    const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    if (mask || (tied_head && name == kHead)) continue;
    state.tensors[std::string(name)] = tensor;
  }
  return state;
}

void check_schedule(const std::string& path, const FlatFormat& format, std::int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const PyValue file = lockstep::load_pt(path);
  if (file.contains("last_epoch") && file.at("last_epoch").to_int() != step) {
    throw InvalidArgument(concat("last_epoch is ", file.at("last_epoch").to_int(),
                                 ", but state.json says step ", step));
  }
  const auto* cosine = std::get_if<lockstep::CosineSchedule>(&format.schedule);
  if (file.contains("T_max") &&
      (cosine == nullptr || cosine->total_steps != file.at("T_max").to_int())) {
    throw InvalidArgument(concat("the run had a cosine schedule of ", file.at("T_max").to_int(),
                                 " steps; say --schedule cosine --schedule-steps ",
                                 file.at("T_max").to_int()));
  }
}

State optimizer_state(const PyValue& file, const lockstep::Optimizer& optimizer,
                      std::int64_t step) {
  const lockstep::PythonOptimizerState python{.state = file.at("state").to_tensors_by_number(),
                                              .param_groups = file.at("param_groups").to_json()};
  const auto parameters = optimizer.parameters().size();
  std::size_t listed = 0;
  for (const json& group : python.param_groups) listed += group.at("params").size();
  if (listed != parameters) {
    throw InvalidArgument(concat("it is of ", listed, " parameters, the model has ", parameters));
  }
  for (const auto& [number, tensors] : python.state) {
    const auto found = tensors.find("step");
    if (found == tensors.end() || found->second.item<double>() == static_cast<double>(step))
      continue;
    throw InvalidArgument(concat("it is of step ", found->second.item<double>(),
                                 ", state.json of step ", step,
                                 "; a save was cut short: go on from another one"));
  }
  return lockstep::from_python(python, optimizer);
}

// What goes wrong with a file is said with its name.
template <typename Read>
auto with_name(const std::string& path, const Read& read) {
  try {
    return read(path);
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    throw InvalidArgument(what.find(path) != std::string::npos ? what : concat(path, ": ", what));
  }
}

}  // namespace

std::optional<std::int64_t> flat_step(const std::string& folder) {
  const std::string path = folder + "/state.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  return read_state(path).at("global_step").get<std::int64_t>();
}

void write_flat(const std::string& folder, const Snapshot& snapshot, const FlatFormat& format) {
  const json& place = snapshot.parts.at("trainer").values;
  lockstep::PythonOptimizerState optimizer = lockstep::to_python(snapshot.parts.at("optimizer"));
  const json groups = groups_for_python(std::move(optimizer.param_groups),
                                        lockstep::LRSchedule(format.schedule), snapshot.step);
  lockstep::save_pt(folder + "/optimizer.pt",
                    PyValue::dict({{"state", optimizer.state}, {"param_groups", groups}}));
  lockstep::save_pt(folder + "/model.pt", model_dict(snapshot.parts.at("model"), format));
  lockstep::save_pt(folder + "/lr_scheduler.pt",
                    schedule_dict(format.schedule, groups, snapshot.step));
  const nlohmann::ordered_json state = {{"epoch", place.at("epoch")},
                                        {"global_step", snapshot.step},
                                        {"epoch_step", place.at("step_in_epoch")},
                                        {"running_loss", 0.0}};
  lockstep::write_durably(folder + "/state.json", state.dump());
}

std::shared_ptr<Snapshot> read_flat(const std::string& folder, const lockstep::Optimizer& optimizer,
                                    const FlatFormat& format) {
  const json state = read_state(folder + "/state.json");
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->step = state.at("global_step");
  snapshot->parts["model"] = with_name(folder + "/model.pt", [&](const std::string& path) {
    return model_state(lockstep::load_pt(path), format.tied_head);
  });
  snapshot->parts["optimizer"] = with_name(folder + "/optimizer.pt", [&](const std::string& path) {
    return optimizer_state(lockstep::load_pt(path), optimizer, snapshot->step);
  });
  with_name(folder + "/lr_scheduler.pt", [&](const std::string& path) {
    check_schedule(path, format, snapshot->step);
    return true;
  });
  snapshot->parts["trainer"].values = {{"step", snapshot->step},
                                       {"epoch", state.at("epoch")},
                                       {"step_in_epoch", state.at("epoch_step")}};
  return snapshot;
}

}  // namespace train_llm
