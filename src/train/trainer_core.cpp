#include "train/trainer_core.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <torch/csrc/api/include/torch/nn/module.h>

#include "comm/group_impl.h"
#include "comm/places.h"
#include "comm/recovery.h"
#include "lockstep/sync_batch_norm.h"
#include "train/loader_facts.h"

namespace lockstep {
namespace {

std::string chosen_directory(const TrainerOptions& options) {
  if (!options.snapshots.directory.empty()) return options.snapshots.directory;
  const char* run = std::getenv("LOCKSTEP_RUN_DIR");
  return run != nullptr ? run : "";
}

std::vector<int> numbers(int first, int last) {
  std::vector<int> list;
  for (int number = first; number < last; ++number) list.push_back(number);
  return list;
}

// The program's configuration, and what the Trainer knows.
TrackingOptions tracking_options(const World& world, const TrainerOptions& options) {
  TrackingOptions tracking = options.tracking;
  if (!tracking.config.is_object()) tracking.config = nlohmann::json::object();
  nlohmann::json trainer = {{"world_size", world.world_size()},
                            {"accumulate", options.accumulate},
                            {"clip_grad_norm", options.clip_grad_norm},
                            {"ema_decay", options.ema_decay},
                            {"seed", options.seed}};
  if (options.epochs) trainer["epochs"] = *options.epochs;
  if (options.steps) trainer["steps"] = *options.steps;
  tracking.config["trainer"] = std::move(trainer);
  return tracking;
}

// Module::to(device, dtype) would convert indices and masks among the buffers, too.
void convert_floating_point(torch::nn::Module& module, at::ScalarType type) {
  const auto convert = [type](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor.set_data(tensor.to(type));
  };
  for (at::Tensor& parameter : module.parameters()) convert(parameter);
  for (at::Tensor& buffer : module.buffers()) convert(buffer);
}

}  // namespace

TrainerCore::TrainerCore(World& world, TrainingTask& task, EvaluationTask* evaluation,
                         const TrainerOptions& options)
    : world_(world),
      task_(task),
      evaluation_(evaluation),
      options_(options),
      module_(task.module()),
      stop_(world,
            {.time_limit = options.time_limit,
             .heeds_interrupt = !options.snapshots.enabled || !chosen_directory(options).empty()}),
      directory_(chosen_directory(options)),
      clock_(world.device()),
      curves_(
          {.directory = directory_,
           .slot = slot_of(world),
           .local_rank = world.local_rank(),
           .node_rank = world.node_rank(),
           .all_slots = options.log_all_ranks,
           .tracking = tracking_options(world, options),
           // From a thread of its own, so not through the progress line, which may change hands.
           .say = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }}),
      last_talk_(std::chrono::steady_clock::now()) {
  check_options();
  const at::Device device = world_.device();
  std::optional<at::ScalarType> input_type;
  if (options_.precision == Precision::bf16_weights) input_type = at::kBFloat16;
  if (!is_deferred()) module_->to(device);
  if (input_type) convert_floating_point(*module_, *input_type);
  task_.set_input(device, input_type);
  if (evaluation_ != nullptr) evaluation_->set_input(device, input_type);

  // A process that takes another's place finds the others in agreement.
  replaces_ranks_ = world_.joins() || all_are_replaced();
  agrees_to_updates_ = options_.shard && replaces_ranks_;
  spread_model();
  state_ = std::make_unique<RunState>(module_, task_.sharded(), options_);
  assume_role();
  if (world_.joins()) {
    recovers_ = true;
    carry_over(/*formed=*/true);
  } else {
    find_place();
    make_step_parts(/*formed_again=*/false);
    make_copies();
    has_state_ = true;
  }
  StepProfilerOptions profile = options_.profile;
  profile.rank = slot_of(world_);  // two ranks of different memberships may be the same
  if (profile.folder.empty()) profile.folder = directory_;
  profiler_ = std::make_unique<StepProfiler>(profile, device);
}

TrainerCore::~TrainerCore() = default;

// What computes a step in the world as it is now.
void TrainerCore::make_step_parts(bool formed_again) {
  sums_ = std::make_unique<SlotSums>(world_.group(), share_);
  gradients_.reset();
  graphs_ = make_graphs();
  gradients_ = std::make_unique<GradientStep>(world_, task_, options_, share_, clock_,
                                              state_->compression(), graphs_.get(), formed_again);
  transactions_ = std::make_unique<StepTransactions>(world_.group(), module_);
}

std::unique_ptr<StepGraphs> TrainerCore::make_graphs() const {
  // c10d measures the first ten steps of a reducer, and waits for the GPU to do so.
  constexpr int kWarmUps = 3, kWarmUpsOfReducer = 12;
  if (!options_.cuda_graph) return nullptr;
  const auto refuse = [](const std::string& why) {
    throw InvalidArgument("Trainer: cuda_graph is set, " + why);
  };
  const at::Device device = world_.device();
  if (!share_.one_each()) {
    refuse(concat("which needs a process for each slot: there are ", share_.slots, " slots and ",
                  world_.world_size(), " processes"));
  }
  if (share_.slots > 1) {
    const bool by_host = device.is_cuda() && world_.group().impl()->serves_on_host(device);
    if (by_host || options_.ddp.reduction == Reduction::ordered) {
      refuse("which on several ranks needs NCCL and its own order of addition");
    }
    if (!task_.data().steps_per_epoch()) {
      refuse("which on several ranks needs a dataset: a stream does not tell what others have");
    }
  }
  return std::make_unique<StepGraphs>(
      device, StepGraphs::Options{.warm_ups = share_.slots > 1 ? kWarmUpsOfReducer : kWarmUps});
}

// What cannot be seen from the options alone.
void TrainerCore::check_options() const {
  const bool watches = options_.watch.patience || options_.snapshots.keep_best ||
                       std::holds_alternative<PlateauSchedule>(options_.schedule);
  if (watches && evaluation_ == nullptr) {
    throw InvalidArgument(
        "Trainer: early stopping, keep_best and PlateauSchedule need an evaluation; give fit() "
        "one");
  }
  const SnapshotPolicy& snapshots = options_.snapshots;
  const bool saves = snapshots.every.steps > 0 || snapshots.every.epochs > 0;
  if (saves && snapshots.enabled && directory_.empty()) {
    throw InvalidArgument(
        "Trainer: snapshots.every is set, but there is no directory for them; set "
        "snapshots.directory");
  }
  check_shard();
  if (evaluation_ != nullptr && &evaluation_->data() == &task_.data()) {
    throw InvalidArgument(
        "Trainer: training and evaluation share a loader; make a second one over the dataset");
  }
}

// Finds out where the run stands, which also decides over how many slots it is dealt.
void TrainerCore::find_place() {
  open_snapshots();
  const std::optional<Snapshot> found = find_snapshot();
  if (found && options_.slots != 0 && options_.slots != found->slots) {
    throw InvalidArgument(concat("slots is ", options_.slots, ", but the run in ", directory_,
                                 " has ", found->slots, "; leave it out to go on with those"));
  }
  share_out(found ? found->slots : options_.slots ? options_.slots : world_.world_size());
  RunPosition& position = state_->position;
  if (found) {
    resume(*found);
  } else if (options_.initial) {
    begin_with(*options_.initial);
  } else {
    position.epoch = world_.group().broadcast_json(options_.first_epoch);
    position.step = position.epoch * task_.data().steps_per_epoch().value_or(0);
  }
  if (snapshots_ && saved_) {
    curves_.resume(is_main(), {.lines = log_lines_, .step = position.step});
  } else {
    const auto lines = curves_.begin(is_main(), position.step, /*continues=*/!snapshots_);
    if (!directory_.empty()) log_lines_ = world_.group().broadcast_json(lines);
  }
}

void TrainerCore::open_snapshots() {
  if (directory_.empty() || !options_.snapshots.enabled) return;
  snapshots_ = std::make_unique<SnapshotStore>(
      world_, SnapshotStoreOptions{
                  .directory = directory_ + "/snapshots",
                  .keep_last = options_.snapshots.keep_last,
                  .background = options_.snapshots.background,
                  .per_node = options_.snapshots.per_node,
                  .in_parts = options_.shard.has_value(),
                  .report = [this](const std::string& line) { warn("lockstep: " + line); }});
}

void TrainerCore::resume(const Snapshot& snapshot) {
  const nlohmann::json& values = snapshot.parts.at("trainer").values;
  const nlohmann::json facts = facts_of(task_.data());
  if (values.contains("data") && values["data"] != facts) {
    const std::string what = concat("the loader is not that of the run in ", directory_, ": ",
                                    facts.dump(), ", there ", values["data"].dump());
    if (values.at("step_in_epoch") != 0) {
      throw InvalidArgument(what + "; an epoch that has begun cannot go on with other batches");
    }
    say("lockstep: " + what);
  }
  for (const std::string& note : state_->restore(snapshot, directory_)) say("lockstep: " + note);
  const RunPosition& position = state_->position;
  saved_ = {position.step, position.epoch};
  result_.resumed_from = position.step;
  log_lines_ = values.value("log_lines", std::int64_t{0});
  say(concat("lockstep: goes on from step ", position.step, " (epoch ", position.epoch, ", step ",
             position.step_in_epoch, " of it) in ", directory_));
}

void TrainerCore::begin_with(const Snapshot& snapshot) {
  state_->begin_with(snapshot);
  const RunPosition& position = state_->position;
  result_.resumed_from = position.step;
  say(concat("lockstep: begins with step ", position.step, " (epoch ", position.epoch, ", step ",
             position.step_in_epoch, " of it) of a run that another program left"));
}

void TrainerCore::share_out(int slots) {
  if (slots < world_.world_size()) {
    throw InvalidArgument(concat(world_.world_size(), " processes for ", slots,
                                 " slots; some would have nothing to compute. A run has as many "
                                 "slots as it had processes at first; start at most that many"));
  }
  share_ = SlotShare::of(slots, world_.rank(), world_.world_size());
  if (!share_.one_each()) check_several_slots();
  place_compression();
  const auto deals_exactly = [](const LoaderBase& data) {
    return data.options().dealing == Dealing::kExact;
  };
  if (slots > 1 && deals_exactly(task_.data())) {
    throw InvalidArgument(
        "Trainer: the loader for training deals exactly, so some slots would run out of batches "
        "before others; leave out Dealing::kExact");
  }
  if (slots > 1 && evaluation_ != nullptr && evaluation_->data().samples_per_epoch() &&
      !deals_exactly(evaluation_->data())) {
    throw InvalidArgument(
        "Trainer: the loader for evaluation repeats samples so that all slots get as many, and "
        "they "
        "would count twice; make it with .dealing = Dealing::kExact");
  }
  const std::vector<int> mine = numbers(share_.first, share_.last);
  task_.data().deal({.slots = slots, .mine = mine, .accumulate = options_.accumulate});
  if (evaluation_ != nullptr) evaluation_->data().deal({.slots = slots, .mine = mine});
}

// In a world that was formed again with fewer or more processes. What was loaded for other slots is
// dropped.
void TrainerCore::share_out_again() {
  const int slots = share_.slots;
  if (share_ != SlotShare::of(slots, world_.rank(), world_.world_size())) share_out(slots);
}

// Before a state is loaded: which error memory this process has, and whether also the others'.
void TrainerCore::place_compression() {
  GradientCompression* compression = state_->compression().get();
  if (compression == nullptr || !share_.one_each()) return;
  const bool one_machine = world_.local_world_size() == world_.world_size();
  const bool mirrored =
      options_.mirror_errors == MirrorErrors::always ||
      (options_.mirror_errors == MirrorErrors::automatic && one_machine && replaces_ranks_);
  compression->set_place(
      {.slot = share_.first, .slots = share_.slots, .mirrored = mirrored && share_.slots > 1});
}

// Processes that compute several slots reduce gradients themselves, after backward.
void TrainerCore::check_several_slots() {
  if (options_.shard) {
    throw InvalidArgument(concat("Trainer: a sharded run needs a process for each of its ",
                                 share_.slots, " slots, and there are ", world_.world_size(),
                                 "; start ", share_.slots));
  }
  for (const auto& module : module_->modules()) {
    if (module->as<SyncBatchNormImpl>() != nullptr) {
      throw InvalidArgument(concat("Trainer: SyncBatchNorm needs a process for each of the ",
                                   share_.slots, " slots; start that many"));
    }
  }
  if (!options_.ddp.ignored.empty()) {
    throw InvalidArgument(concat("Trainer: ddp.ignored needs a process for each of the ",
                                 share_.slots, " slots; start that many"));
  }
  if (!std::holds_alternative<std::monostate>(options_.compression)) {
    throw InvalidArgument(concat("Trainer: compression needs a process for each of the ",
                                 share_.slots, " slots; start that many"));
  }
  if (options_.ddp.reduction == Reduction::native) {
    say("lockstep: fewer processes than slots: gradients are added in slot order, which is not the "
        "backend's (reduction native); the bits will differ from those of a process per slot");
  }
}

TrainResult TrainerCore::run() {
  module_->train();
  introduce_tracker();
  for (const auto& callback : options_.callbacks) callback->on_start(state_->position.step);
  if (state_->watch().should_stop()) reason_ = StopReason::early_stopped;
  recovers_ = recoverable();
  if (recovers_) commit_to_recovery(world_, state_->position.step);
  while (true) {
    try {
      proceed();
      return result_;
    } catch (const InvalidArgument&) {
      throw;
    } catch (const NonFiniteStep&) {
      throw;
    } catch (const std::exception&) {
      if (!others_were_lost()) throw;
    }
    carry_over(/*formed=*/false);
  }
}

void TrainerCore::proceed() {
  settle();
  while (!reason_) run_epoch();
  finish();
}

// A batch sampler is asked once for each epoch.
std::optional<std::int64_t> TrainerCore::steps_in_epoch() const {
  const std::int64_t epoch = state_->position.epoch;
  if (!known_steps_ || known_steps_->first != epoch) {
    known_steps_ = {epoch, task_.data().steps_per_epoch(epoch)};
  }
  return known_steps_->second;
}

bool TrainerCore::is_epoch_complete() const {
  const RunPosition& position = state_->position;
  const auto all = steps_in_epoch();
  return all && position.step_in_epoch > 0 && position.step_in_epoch >= *all;
}

void TrainerCore::run_epoch() {
  RunPosition& position = state_->position;
  // A run may have been stopped between an epoch's last step and what follows it.
  if (!is_epoch_complete()) {
    if ((options_.epochs && position.epoch >= *options_.epochs) ||
        (options_.steps && position.step >= *options_.steps)) {
      reason_ = StopReason::finished;
      return;
    }
    if (!run_steps()) return;
  }
  position.epoch += 1;
  position.step_in_epoch = 0;
  ++commits_;
  after_epoch();
}

// Returns whether the epoch has come to its end, and the run has not.
bool TrainerCore::run_steps() {
  RunPosition& position = state_->position;
  // What a source that cannot go back delivered before is gone; it goes on with what comes.
  const bool replayable = task_.data().replayable();
  world_.report(position.step, "epoch");
  task_.data().begin_epoch(position.epoch, replayable ? position.step_in_epoch : 0);
  for (;;) {
    clock_.begin_step(logs(position.step));
    world_.report(position.step, "data");
    const std::vector<StepBatch> batches = task_.fetch_step();
    if (!all_have_data(batches)) break;
    clock_.mark(&StepTimes::data);
    train_step(batches);
    if (reason_) return false;
    if (options_.steps && position.step >= *options_.steps) return is_epoch_complete();
  }
  if (position.step_in_epoch > 0) return true;
  if (steps_in_epoch() || position.step == 0) {
    throw InvalidArgument(
        "the loader delivers no batch: the dataset is empty, or drop_last leaves nothing of it");
  }
  reason_ = StopReason::finished;  // a stream that has ended for good
  return false;
}

// A dataset ends for all slots at the same step. A stream may end here and go on elsewhere.
bool TrainerCore::all_have_data(const std::vector<StepBatch>& batches) {
  std::vector<std::vector<double>> rows;
  double slots = 0;
  for (int slot = share_.first; slot < share_.last; ++slot) {
    const bool has = std::ranges::any_of(
        batches, [slot](const StepBatch& batch) { return batch.address.slot == slot; });
    rows.push_back({has ? 1.0 : 0.0});
    slots += has;
  }
  if (!steps_in_epoch()) return sums_->add(rows).front() == share_.slots;
  if (slots != 0 && slots != share_.count()) {
    throw InvalidArgument(concat("step ", state_->position.step,
                                 ": the batch sampler gives some slots nothing; it must give every "
                                 "slot a batch in every step"));
  }
  return slots != 0;
}

}  // namespace lockstep
