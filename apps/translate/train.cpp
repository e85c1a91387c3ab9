#include "train.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "command_line.h"
#include "corpus.h"
#include "epoch_files.h"
#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "lockstep/progress.h"
#include "lockstep/trainer.h"
#include "lockstep/transformer.h"
#include "program_ranks/program_ranks.h"
#include "recipe.h"
#include "run_directory.h"
#include "validation.h"
#include "weight_files.h"

namespace translate {
namespace {

using lockstep::concat;
using lockstep::InvalidArgument;
using Data = lockstep::Loader<PairDataset>;

/// One rank's part of a run.
class Run {
 public:
  explicit Run(const Options& options);
  int train();

 private:
  nlohmann::json find_place();
  void take_place(const nlohmann::json& place);
  void prepare();
  void check_same() const;
  Data make_loader(const std::shared_ptr<const PairDataset>& pairs, bool training) const;
  lockstep::TrainResult fit(lockstep::TrainerOptions& training);
  void say(const std::string& line) const;
  bool is_main() const { return world_.rank() == 0; }

  Options options_;
  lockstep::World world_;
  RunDirectory directory_;
  bool goes_on_ = false;  // there is something to go on from
  std::string file_;      // and it is this file of an epoch, not a snapshot
  std::optional<Corpus> corpus_;
  lockstep::Transformer model_{nullptr};
};

class OnStart : public lockstep::Callback {
 public:
  explicit OnStart(std::function<void()> call) : call_(std::move(call)) {}
  void on_start(std::int64_t) override { call_(); }

 private:
  std::function<void()> call_;
};

// A launcher that starts a job again means it to go on, whatever its first start was told.
bool is_restarted() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count != nullptr && std::string_view(count) != "0";
}

Run::Run(const Options& options)
    : options_(options),
      world_(program_ranks::make_world(options.backend, options.device)),
      directory_(options.save_dir + "/" + options.experiment_name) {
  // Rank 0 looks, so that all ranks do the same. One that replaces another finds a run under way.
  nlohmann::json place = {{"goes_on", true}, {"file", ""}};
  if (!world_.joins()) {
    program_ranks::prepare_on_ranks(world_, [&] {
      if (is_main()) place = find_place();
    });
    place = world_.group().broadcast_json(place);
  }
  take_place(place);
  program_ranks::prepare_on_ranks(world_, [this] { prepare(); });
}

// What the run goes on from; rank 0 alone.
nlohmann::json Run::find_place() {
  const auto snapshot = directory_.newest_snapshot();
  const auto newest = newest_weight_file(directory_.weights());
  nlohmann::json place = {{"goes_on", snapshot || newest}, {"file", ""}};
  const auto epoch = epoch_number(options_.preload);
  if (options_.preload == "none" && !is_restarted() && (snapshot || newest)) {
    throw InvalidArgument(concat("--preload is none, but ", directory_.path(),
                                 " has a run; name another --experiment-name, or move it away"));
  }
  if (epoch && !is_restarted()) {
    const std::string path = weight_file_path(directory_.weights(), *epoch);
    if (!std::filesystem::exists(path)) {
      throw InvalidArgument(concat(
          "--preload is ", options_.preload, ", but there is no ", path,
          newest ? concat("; the last one is of epoch ", *newest) : "; no epoch has a file yet"));
    }
    read_weight_file(path);  // before anything is moved away
    const std::string aside = directory_.set_aside_after(*epoch);
    if (!aside.empty()) say(concat("what came after epoch ", *epoch, " is in ", aside));
    place["file"] = path;
  } else if (newest) {
    const std::string path = weight_file_path(directory_.weights(), *newest);
    // Python may have gone on from the file of an earlier epoch of ours.
    if (!snapshot || read_weight_file(path).global_step > *snapshot) place["file"] = path;
  }
  if (!place.at("goes_on")) {
    say(concat("--preload ", options_.preload, ": none found, starting from scratch"));
  }
  return place;
}

void Run::take_place(const nlohmann::json& place) {
  goes_on_ = place.at("goes_on");
  file_ = place.at("file");
  if (goes_on_ && directory_.has_config()) {
    const Options stored = directory_.stored_options();
    if (options_.slots == 0) options_.slots = stored.slots;
    if (options_.wandb_run_id.empty()) options_.wandb_run_id = stored.wandb_run_id;
  }
  if (options_.slots == 0) options_.slots = world_.world_size();
  if (options_.wandb_run_id.empty() && !file_.empty()) {
    options_.wandb_run_id = read_weight_file(file_).wandb_run_id;
  }
  if (options_.wandb_run_id.empty()) options_.wandb_run_id = options_.experiment_name;
}

void Run::prepare() {
  corpus_ = make_corpus(options_, goes_on_ ? directory_.path() : "");
  model_ = lockstep::Transformer(model_config(options_, corpus_->source, corpus_->target),
                                 {.label_smoothing = options_.label_smoothing,
                                  .seed = static_cast<std::uint64_t>(options_.seed)});
  if (is_main()) directory_.make();
  if (is_main() && goes_on_ && directory_.has_config()) check_same();
}

void Run::check_same() const {
  const Options stored = directory_.stored_options();
  const auto there = model_config(stored, corpus_->source, corpus_->target);
  auto here = model_->config();
  here.dropout = there.dropout;
  if (!(here == there) || stored.tokenizer != options_.tokenizer) {
    throw InvalidArgument(concat("the run in ", directory_.path(),
                                 " has another model: ", changed_options(stored, options_),
                                 "; name another --experiment-name"));
  }
  const std::string changes = changed_options(stored, options_);
  if (!changes.empty()) say("not as the run was begun: " + changes);
}

Data Run::make_loader(const std::shared_ptr<const PairDataset>& pairs, bool training) const {
  lockstep::LoaderOptions loading{.batch_size = options_.batch_size,
                                  .shuffle = training,
                                  .seed = static_cast<std::uint64_t>(options_.seed),
                                  .num_workers = static_cast<int>(options_.num_workers)};
  if (!training) loading.dealing = lockstep::Dealing::kExact;
  if (!world_.device().is_cpu()) {
    loading.pin_memory = true;
    loading.device = world_.device();
  }
  return Data(pairs, loading);
}

constexpr auto kLoss = [](auto& model, const PairBatch& batch) {
  const lockstep::TransformerLoss loss = model(batch.source, batch.target, batch.labels);
  return lockstep::LossSum{.sum = loss.sum, .count = loss.count};
};

lockstep::TrainResult Run::fit(lockstep::TrainerOptions& training) {
  Data data = make_loader(corpus_->training, /*training=*/true);
  if (!corpus_->validation) {
    return lockstep::Trainer(world_, training).fit(model_, data, kLoss);
  }
  Translations translations(model_, *corpus_,
                            {.beam = options_.beam,
                             .length_penalty = options_.length_penalty,
                             .start_id = kStart,
                             .end_id = kEnd});
  training.callbacks.push_back(
      std::make_shared<ValidationReport>(world_, translations, options_.examples));
  Data held_out = make_loader(corpus_->validation, /*training=*/false);
  const auto try_out = [&](auto& model, const PairBatch& batch) {
    translations.add(batch);
    return kLoss(model, batch);
  };
  const auto conclude = [&](lockstep::ProcessGroup& group) { return translations.conclude(group); };
  return lockstep::Trainer(world_, training)
      .fit(model_, data, kLoss, lockstep::Evaluation{held_out, try_out, conclude});
}

void Run::say(const std::string& line) const {
  if (!is_main()) return;
  std::printf("translate: %s\n", line.c_str());
  std::fflush(stdout);
}

int Run::train() {
  const std::int64_t steps = run_steps(options_, corpus_->training->size());
  lockstep::TrainerOptions training =
      trainer_options(options_, directory_.path(), steps, options_.wandb_run_id);
  if (!file_.empty()) {
    const auto optimizer =
        lockstep::make_optimizer(lockstep::named_parameters(*model_), optimizer_options(options_));
    training.initial = snapshot_of_weight_file(file_, *optimizer);
    training.snapshots.resume = false;
    say("goes on from " + file_);
  }
  // Not before the Trainer has accepted what it finds there.
  if (is_main()) {
    training.callbacks.push_back(std::make_shared<OnStart>(
        [this] { directory_.write(options_, corpus_->source, corpus_->target); }));
  }
  training.callbacks.push_back(
      std::make_shared<EpochFiles>(world_, directory_, options_.wandb_run_id));
  say(corpus_->what);
  say(concat(lockstep::short_number(static_cast<double>(model_->parameter_count())),
             " parameters, ", options_.dtype, ", ", world_.world_size(), " rank(s) on ",
             world_.device().str(), ", ", options_.slots, " slot(s), ", steps, " steps of ",
             options_.slots * options_.batch_size * options_.grad_accum, " pairs; run directory ",
             directory_.path()));
  const auto began = std::chrono::steady_clock::now();
  const lockstep::TrainResult result = fit(training);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  say(concat("trained ", result.step - result.resumed_from, " steps in ",
             static_cast<int>(seconds.count()), " s; an epoch's weights each in ",
             directory_.weights(), ", logs in ", directory_.path(), "/metrics"));
  say(concat("try it: translate infer --run ", directory_.path(), " \"",
             corpus_->held_out.empty() ? "..." : on_one_line(corpus_->held_out.front().source),
             "\""));
  return program_ranks::end_run(world_, result);
}

}  // namespace

int train(const Options& options) {
  try {
    return Run(options).train();
  } catch (const program_ranks::SaidElsewhere&) {
    return program_ranks::kBadArguments;
  }
}

}  // namespace translate
