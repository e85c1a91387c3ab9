#include "weight_files.h"

#include <cstdio>
#include <string_view>
#include <utility>
#include <variant>

#include "lockstep/error.h"
#include "lockstep/torch_file.h"
#include "program_runs/run_folder.h"

namespace translate {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using lockstep::PyValue;

constexpr std::string_view kBefore = "tmodel_", kAfter = ".pt";

// What goes wrong with a file is said with its name.
template <typename Read>
auto reading(const std::string& path, const Read& read) {
  try {
    return read(lockstep::load_pt(path));
  } catch (const InvalidArgument& error) {
    const std::string what = error.what();
    throw InvalidArgument(what.find(path) != std::string::npos ? what : concat(path, ": ", what));
  }
}

WeightFile content_of(const PyValue& file) {
  WeightFile content{.epoch = file.at("epoch").to_int(),
                     .global_step = file.at("global_step").to_int(),
                     .wandb_run_id = {},
                     .model = file.at("model_state_dict").to_state()};
  if (file.contains("wandb_run_id") &&
      std::holds_alternative<std::string>(file.at("wandb_run_id").data())) {
    content.wandb_run_id = file.at("wandb_run_id").to_string();
  }
  if (content.epoch < 0 || content.global_step < 0) {
    throw InvalidArgument(concat("epoch is ", content.epoch, " and global_step ",
                                 content.global_step, "; neither can be negative"));
  }
  return content;
}

}  // namespace

std::string weight_file_path(const std::string& directory, std::int64_t epoch) {
  char number[32];
  std::snprintf(number, sizeof(number), "%02lld", static_cast<long long>(epoch));
  return concat(directory, "/", kBefore, number, kAfter);
}

std::optional<std::int64_t> newest_weight_file(const std::string& directory) {
  return program_runs::greatest_number(directory, kBefore, kAfter);
}

void write_weight_file(const std::string& directory, const lockstep::Snapshot& snapshot,
                       const std::string& wandb_run_id) {
  const auto epochs = snapshot.parts.at("trainer").values.at("epoch").get<std::int64_t>();
  program_runs::make_folder(directory);
  lockstep::PythonOptimizerState optimizer = lockstep::to_python(snapshot.parts.at("optimizer"));
  lockstep::save_pt(
      weight_file_path(directory, epochs - 1),
      PyValue::dict({{"epoch", epochs - 1},
                     {"model_state_dict", snapshot.parts.at("model")},
                     {"optimizer_state_dict",
                      PyValue::dict({{"state", optimizer.state},
                                     {"param_groups", PyValue(optimizer.param_groups)}})},
                     {"global_step", snapshot.step},
                     {"wandb_run_id", wandb_run_id}}));
}

WeightFile read_weight_file(const std::string& path) {
  return reading(path, content_of);
}

std::shared_ptr<lockstep::Snapshot> snapshot_of_weight_file(const std::string& path,
                                                            const lockstep::Optimizer& optimizer) {
  return reading(path, [&](const PyValue& file) {
    WeightFile content = content_of(file);
    const PyValue& state = file.at("optimizer_state_dict");
    const lockstep::PythonOptimizerState python{.state = state.at("state").to_tensors_by_number(),
                                                .param_groups = state.at("param_groups").to_json()};
    std::size_t listed = 0;
    for (const nlohmann::json& group : python.param_groups) listed += group.at("params").size();
    if (listed != optimizer.parameters().size()) {
      throw InvalidArgument(concat("its optimizer has ", listed, " parameters, the model ",
                                   optimizer.parameters().size()));
    }
    auto snapshot = std::make_shared<lockstep::Snapshot>();
    snapshot->step = content.global_step;
    snapshot->parts["model"] = std::move(content.model);
    snapshot->parts["optimizer"] = lockstep::from_python(python, optimizer);
    snapshot->parts["trainer"].values = {
        {"step", content.global_step}, {"epoch", content.epoch + 1}, {"step_in_epoch", 0}};
    return snapshot;
  });
}

}  // namespace translate
