#include "train/run_state.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/error.h"
#include "lockstep/module_state.h"

namespace lockstep {
namespace {

constexpr const char* kCallbackPart = "callback_";

std::unique_ptr<Optimizer> optimizer_for(const torch::nn::Module& module,
                                         const ShardedEngine* sharded,
                                         const TrainerOptions& options,
                                         ShardPart part = ShardPart::own) {
  std::vector<ParamGroup> groups(1);
  if (options.groups) {
    groups = options.groups(module);
  } else {
    groups.front().parameters = named_parameters(module);
  }
  if (std::ranges::all_of(groups, [](const ParamGroup& each) { return each.parameters.empty(); })) {
    throw InvalidArgument("Trainer: the model has no parameters to train");
  }
  if (sharded != nullptr) groups = sharded->parts_of(std::move(groups), part);
  return make_optimizer(std::move(groups), options.optimizer);
}

const State& part(const Snapshot& snapshot, const std::string& name) {
  const auto found = snapshot.parts.find(name);
  if (found == snapshot.parts.end()) {
    throw InvalidArgument(concat("the snapshot of step ", snapshot.step, " has no part '", name,
                                 "', which these options need; it has been made with others"));
  }
  return found->second;
}

}  // namespace

RunState::RunState(std::shared_ptr<torch::nn::Module> module, ShardedEngine* sharded,
                   const TrainerOptions& options)
    : options_(options),
      module_(std::move(module)),
      sharded_(sharded),
      optimizer_(optimizer_for(*module_, sharded_, options)),
      parameters_(optimizer_->parameters()),
      schedule_(options.schedule),
      watch_(options.watch) {
  if (sharded_ != nullptr && sharded_->keeps_copy()) make_copy_optimizer();
  if (options.precision == Precision::fp16_autocast) scaler_.emplace();
  if (!std::holds_alternative<std::monostate>(options.compression) &&
      !std::holds_alternative<CommHook>(options.compression)) {
    compression_ = std::make_shared<GradientCompression>(*module_, options.compression);
    compression_->use_transactions();
  }
  if (options.ema_decay > 0) ema_.emplace(*module_, EmaOptions{.decay = options.ema_decay});
}

void RunState::make_copy_optimizer() {
  copy_optimizer_ = optimizer_for(*module_, sharded_, options_, ShardPart::copied);
}

void RunState::update(const StepArguments& arguments) {
  optimizer_->step(arguments);
  if (!copy_optimizer_) return;
  // What a schedule or a callback has set, as the owner has it.
  for (std::size_t group = 0; group < optimizer_->groups().size(); ++group) {
    copy_optimizer_->set_lr(group, optimizer_->lr(group));
    copy_optimizer_->set_momentum(group, optimizer_->momentum(group));
  }
  copy_optimizer_->step(arguments);
  sharded_->drop_copy_gradients();
}

Snapshot RunState::snapshot(const SlotShare& share, std::int64_t epoch) const {
  Snapshot snapshot = values(share, epoch);
  if (sharded_ != nullptr) {
    snapshot.parts["model"] = sharded_->state();
    snapshot.parts["optimizer"] = sharded_->optimizer_state(*optimizer_);
  } else {
    snapshot.parts.merge(parts().parts);
  }
  return snapshot;
}

Snapshot RunState::parts(const HeldParts& which) const {
  Snapshot snapshot;
  State& model = snapshot.parts["model"];
  if (sharded_ == nullptr) {
    model = module_state(*module_);
  } else {
    model = which.alone ? sharded_->part_state(which.part) : sharded_->held_state(which.part);
  }
  const bool own = which.part == ShardPart::own;
  snapshot.parts["optimizer"] = (own ? optimizer_ : copy_optimizer_)->state();
  if (ema_) snapshot.parts["ema"] = ema_->state();
  return snapshot;
}

Snapshot RunState::values(const SlotShare& share, std::int64_t epoch) const {
  Snapshot snapshot{
      .step = position.step, .epoch = epoch, .slots = share.slots, .seed = options_.seed};
  snapshot.parts["schedule"] = schedule_.state();
  snapshot.parts["watch"] = watch_.state();
  if (scaler_) snapshot.parts["scaler"] = scaler_->state();
  if (compression_) snapshot.parts["compression"] = compression_->state();
  snapshot.parts["trainer"].values = {{"step", position.step},
                                      {"epoch", position.epoch},
                                      {"step_in_epoch", position.step_in_epoch},
                                      {"samples", position.samples},
                                      {"accumulate", options_.accumulate}};
  for (const auto& callback : options_.callbacks) {
    if (!callback->name().empty()) {
      snapshot.parts[kCallbackPart + callback->name()] = callback->state();
    }
  }
  return snapshot;
}

void RunState::load_model(const State& state) {
  if (sharded_ != nullptr) return sharded_->load_state(state);
  load_module_state(*module_, state);
}

void RunState::load_optimizer(const State& state) {
  if (sharded_ != nullptr) return sharded_->load_optimizer_state(*optimizer_, state);
  optimizer_->load_state(state);
}

const nlohmann::json& RunState::checked_values(const Snapshot& snapshot,
                                               const std::string& directory) const {
  const nlohmann::json& values = part(snapshot, "trainer").values;
  if (values.at("accumulate") != options_.accumulate) {
    throw InvalidArgument(concat(
        "accumulate is ", options_.accumulate, ", but the run in ", directory, " was made with ",
        values.at("accumulate").get<std::int64_t>(), "; its steps would not be the same"));
  }
  if (snapshot.seed != options_.seed) {
    throw InvalidArgument(concat("seed is ", options_.seed, ", but the run in ", directory,
                                 " was made with ", snapshot.seed));
  }
  return values;
}

std::vector<std::string> RunState::restore(const Snapshot& snapshot, const std::string& directory) {
  checked_values(snapshot, directory);
  load_model(part(snapshot, "model"));
  load_optimizer(part(snapshot, "optimizer"));
  if (ema_) ema_->load_state(part(snapshot, "ema"));
  return restore_values(snapshot, directory);
}

std::vector<std::string> RunState::restore_values(const Snapshot& snapshot,
                                                  const std::string& directory) {
  const nlohmann::json& values = checked_values(snapshot, directory);
  schedule_.load_state(part(snapshot, "schedule"));
  watch_.load_state(part(snapshot, "watch"));
  if (scaler_) scaler_->load_state(part(snapshot, "scaler"));
  if (compression_) compression_->load_state(part(snapshot, "compression"));
  std::vector<std::string> notes;
  for (const auto& callback : options_.callbacks) {
    if (callback->name().empty()) continue;
    const auto found = snapshot.parts.find(kCallbackPart + callback->name());
    if (found != snapshot.parts.end()) {
      callback->load_state(found->second);
    } else {
      notes.push_back(concat("the snapshot of step ", snapshot.step, " has no state of callback '",
                             callback->name(), "', which begins anew"));
    }
  }
  position = {.step = values.at("step"),
              .epoch = values.at("epoch"),
              .step_in_epoch = values.at("step_in_epoch"),
              .samples = values.at("samples")};
  return notes;
}

void RunState::restore_copy(const Snapshot& snapshot) {
  sharded_->load_copy(part(snapshot, "model"));
  copy_optimizer_->load_state(part(snapshot, "optimizer"));
}

void RunState::begin_with(const Snapshot& snapshot) {
  load_model(part(snapshot, "model"));
  const auto optimizer = snapshot.parts.find("optimizer");
  if (optimizer != snapshot.parts.end()) load_optimizer(optimizer->second);
  const nlohmann::json& values = part(snapshot, "trainer").values;
  position = {.step = values.at("step"),
              .epoch = values.at("epoch"),
              .step_in_epoch = values.value("step_in_epoch", std::int64_t{0})};
}

void erase_callback_parts(Snapshot& snapshot) {
  std::erase_if(snapshot.parts,
                [](const auto& part) { return part.first.starts_with(kCallbackPart); });
}

}  // namespace lockstep
