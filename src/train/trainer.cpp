#include "lockstep/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/module_state.h"
#include "lockstep/snapshot.h"
#include "lockstep/spawn.h"
#include "lockstep/store.h"
#include "train/trainer_core.h"

namespace lockstep {
namespace {

void refuse(const std::string& what) {
  throw InvalidArgument("Trainer: " + what);
}

void validate(const TrainerOptions& options) {
  if (!options.epochs && !options.steps) {
    refuse("neither epochs nor steps is set; the run would never end");
  }
  if (options.epochs.value_or(0) < 0) refuse(concat("epochs is ", *options.epochs));
  if (options.steps.value_or(0) < 0) refuse(concat("steps is ", *options.steps));
  if (options.first_epoch < 0) refuse(concat("first_epoch is ", options.first_epoch));
  if (options.accumulate < 1) {
    refuse(concat("accumulate is ", options.accumulate, "; it must be 1 or more"));
  }
  if (!(options.clip_grad_norm >= 0)) {
    refuse(concat("clip_grad_norm is ", options.clip_grad_norm,
                  "; it must be positive, or 0 for "
                  "no clipping"));
  }
  if (!(options.ema_decay >= 0 && options.ema_decay < 1)) {
    refuse(concat("ema_decay is ", options.ema_decay, "; it must be at least 0 and below 1"));
  }
  if (keeps_error(options.compression) && options.precision == Precision::fp16_autocast) {
    refuse(
        "compression with error feedback and fp16_autocast: the scale of the loss changes from "
        "step to step, and what was not sent yet would be of another one; use bf16_autocast");
  }
  if (options.shard) {
    if (options.ema_decay > 0) refuse("ema_decay and shard: the average would be whole everywhere");
    if (!std::holds_alternative<std::monostate>(options.compression)) {
      refuse("compression and shard: what travels between parts is not compressed");
    }
    if (options.precision == Precision::fp16_autocast) {
      refuse("fp16_autocast and shard: the scale of the loss is not agreed on; use bf16_autocast");
    }
  }
  if (options.cuda_graph) {
    if (options.shard) refuse("cuda_graph and shard: parts are brought together by the host");
    if (options.precision == Precision::fp16_autocast) {
      refuse("cuda_graph and fp16_autocast: the scale of the loss changes; use bf16_autocast");
    }
    if (!std::holds_alternative<std::monostate>(options.compression)) {
      refuse("cuda_graph and compression: the host takes part in it");
    }
    if (options.ddp.find_unused_parameters || options.ddp.static_graph) {
      refuse("cuda_graph and find_unused_parameters or static_graph: the host takes part in them");
    }
    const auto* cycle = std::get_if<OneCycleSchedule>(&options.schedule);
    if (cycle != nullptr && cycle->cycle_momentum) {
      refuse("cuda_graph and a schedule of the momentum; set cycle_momentum to false");
    }
  }
  if (options.devices > 1 && !options.gather_at_end) {
    refuse("gather_at_end is false with devices: the processes could not hand the model over");
  }
  if (options.devices < 1) refuse(concat("devices is ", options.devices, "; it must be positive"));
  if (options.slots < 0) refuse(concat("slots is ", options.slots, "; it cannot be negative"));
  for (const Every& every : {options.evaluate_every, options.snapshots.every}) {
    if (every.steps < 0 || every.epochs < 0) {
      refuse(concat("every ", every.steps, " steps, ", every.epochs,
                    " epochs: neither can be negative"));
    }
  }
}

// A process alone needs no launcher.
World world_of_one() {
  return init({.store = Store::tcp({.serve = true}), .rank = 0, .world_size = 1});
}

// Where the ranks that fit() starts leave the trained model for the process that started them, and
// for the ranks of later calls, which pass through this one on their way: a folder for each call.
constexpr const char* kResults = "LOCKSTEP_FIT_RESULTS";

/// Of the first process; it lives until that ends.
class ResultFolder {
 public:
  ResultFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep_fit_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_errno(concat("making a folder like ", name));
    path_ = name;
  }
  ~ResultFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ResultFolder(const ResultFolder&) = delete;
  ResultFolder& operator=(const ResultFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

int fits_in_processes = 0;  // main() makes the same calls in every process

void hand_over(World& world, const std::string& folder, const torch::nn::Module& module,
               const TrainResult& result) {
  Snapshot snapshot{.step = result.step};
  snapshot.parts["model"] = module_state(module);
  nlohmann::json& values = snapshot.parts["result"].values;
  values = {{"reason", static_cast<int>(result.reason)},
            {"epoch", result.epoch},
            {"evaluation", result.evaluation},
            {"best_step", result.best_step},
            {"resumed_from", result.resumed_from}};
  if (result.loss) values["loss"] = *result.loss;
  if (result.best) values["best"] = *result.best;
  SnapshotStore store(world, {.directory = folder, .background = false});
  store.save(snapshot);
  if (store.writes() && !store.last_error().empty()) {
    throw SystemError(concat("the trained model cannot be handed over: ", store.last_error()));
  }
}

// JSON has no number that is not finite.
double number(const nlohmann::json& value) {
  return value.is_number() ? value.get<double>() : std::nan("");
}

TrainResult take_over(const std::string& folder, torch::nn::Module& module) {
  const Snapshot snapshot = read_snapshot(folder);
  load_module_state(module, snapshot.parts.at("model"));
  const nlohmann::json& values = snapshot.parts.at("result").values;
  TrainResult result{.reason = static_cast<StopReason>(values.at("reason").get<int>()),
                     .step = snapshot.step,
                     .epoch = values.at("epoch"),
                     .best_step = values.at("best_step"),
                     .resumed_from = values.at("resumed_from")};
  for (const auto& [name, value] : values.at("evaluation").items()) {
    result.evaluation[name] = number(value);
  }
  if (values.contains("loss")) result.loss = number(values["loss"]);
  if (values.contains("best")) result.best = number(values["best"]);
  return result;
}

// Starts the ranks as processes of this program; in those, does not return.
TrainResult run_in_processes(int count, torch::nn::Module& module,
                             const std::function<TrainResult(World&)>& run_in) {
  if (std::getenv(kResults) == nullptr) {
    static const ResultFolder results;
    ::setenv(kResults, results.path().c_str(), /*replace=*/1);
  }
  const std::string folder = concat(std::getenv(kResults), "/", ++fits_in_processes);
  try {
    spawn(
        [&](int) {
          World world = init();
          const TrainResult result = run_in(world);
          hand_over(world, folder, module, result);
        },
        count);
  } catch (const SpawnFailed& failed) {
    if (failed.exit_code() == Preempted::kExitCode) throw Preempted(failed.what());
    throw;
  }
  return take_over(folder, module);
}

}  // namespace

detail::HeldTensors::Forms detail::HeldTensors::forms_of(const Places& batch) {
  Forms forms;
  for (const at::Tensor* tensor : batch) {
    TensorForm& form = forms.emplace_back();
    if (!tensor->defined()) continue;
    if (tensor->layout() != at::kStrided) {
      throw InvalidArgument(concat("cuda_graph: a batch has a tensor of layout ", tensor->layout(),
                                   "; make it dense in the dataset or in collate"));
    }
    form = {.sizes = tensor->sizes().vec(),
            .strides = tensor->strides().vec(),
            .device = tensor->device(),
            .type = tensor->scalar_type()};
  }
  return forms;
}

void detail::HeldTensors::take(const Places& batch) {
  if (batch.empty()) {
    throw InvalidArgument(
        "cuda_graph: no tensors are found in a batch; write a free function "
        "for_each_tensor(batch, visit) beside its type");
  }
  const at::NoGradGuard no_grad;
  if (tensors_.empty()) {
    forms_ = forms_of(batch);
    for (const at::Tensor* tensor : batch) {
      tensors_.push_back(tensor->defined() ? tensor->detach().clone() : at::Tensor());
    }
    return;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (tensors_[i].defined()) tensors_[i].copy_(*batch[i], /*non_blocking=*/true);
  }
}

void detail::HeldTensors::exchange(const Places& batch) {
  if (!originals_.empty()) {
    const std::size_t count = std::min(batch.size(), originals_.size());
    for (std::size_t i = 0; i < count; ++i) *batch[i] = std::move(originals_[i]);
    originals_.clear();
    return;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    originals_.push_back(*batch[i]);
    if (!tensors_[i].defined()) continue;
    // A loss function that takes gradients of its input finds none there of the step before.
    const bool wanted = batch[i]->requires_grad();
    *batch[i] = tensors_[i].detach().requires_grad_(wanted);
  }
}

Trainer::Trainer(TrainerOptions options) : options_(std::move(options)) {
  validate(options_);
}

Trainer::Trainer(World& world, TrainerOptions options)
    : options_(std::move(options)), world_(&world) {
  validate(options_);
}

Trainer::~Trainer() = default;

TrainResult Trainer::run(TrainingTask& task, EvaluationTask* evaluation) {
  const auto run_in = [&](World& world) {
    try {
      return TrainerCore(world, task, evaluation, options_).run();
    } catch (const Preempted&) {
      throw;  // these two all ranks throw together, and the world stays whole
    } catch (const NonFiniteStep&) {
      throw;
    } catch (...) {
      world.abort();  // the others may wait for this rank in a collective
      throw;
    }
  };
  if (world_ != nullptr) return run_in(*world_);
  // The ranks that spawn() starts find variables of a launcher, too.
  const bool launched = detect_environment(Environment::of_process()).has_value();
  const bool spawned = std::getenv("LOCKSTEP_SPAWN") != nullptr;
  const bool started_by_fit = spawned && std::getenv(kResults) != nullptr;
  if (started_by_fit && options_.devices == 1) {
    throw InvalidArgument(
        "Trainer: a fit() with devices = 1 stands in main() before one with more, whose ranks pass "
        "through it; give both the same number");
  }
  if (options_.devices > 1 && (started_by_fit || !launched)) {
    return run_in_processes(options_.devices, *task.module(), run_in);
  }
  World world = launched ? init() : world_of_one();
  return run_in(world);
}

}  // namespace lockstep
