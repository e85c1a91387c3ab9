#include "train.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "answer_samples.h"
#include "core/durable_file.h"
#include "corpus.h"
#include "devices.h"
#include "exact_match.h"
#include "flat_checkpoint.h"
#include "flat_files.h"
#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "lockstep/progress.h"
#include "lockstep/trainer.h"
#include "model_setup.h"
#include "program_ranks/program_ranks.h"
#include "recipe.h"
#include "run_directory.h"
#include "step_log.h"

namespace train_llm {
namespace {

using lockstep::concat;
using lockstep::Gpt2;
using lockstep::InvalidArgument;
using lockstep::World;
using Data = lockstep::Loader<lockstep::TokenDataset>;

/// One rank's part of a run: everything that fit() needs, made in the order of the members.
class Run {
 public:
  explicit Run(const Invocation& invocation);
  int train();

 private:
  void decide_place();
  void prepare();
  void check_vocabulary() const;
  void check_graph() const;
  Data make_loader(const std::shared_ptr<const lockstep::TokenDataset>& blocks,
                   bool training) const;
  std::int64_t run_steps() const;
  lockstep::TrainerOptions trainer_options(std::int64_t steps);
  lockstep::TrainResult fit(const lockstep::TrainerOptions& options, Data& data);
  void add_callbacks(lockstep::TrainerOptions& options, const Data& data, std::int64_t steps);
  FlatFormat flat_format(const lockstep::LRScheduleOptions& schedule) const;
  void ask_questions(const char* when);
  void say(const std::string& line) const;
  bool is_main() const { return world_.rank() == 0; }

  Options options_;
  bool embedded_;  // the data is inside the program
  World world_;
  RunDirectory directory_;
  bool goes_on_ = false;          // there is something to go on from
  bool from_flat_files_ = false;  // and it is the tutorial's files
  std::optional<Corpus> corpus_;
  Gpt2 model_{nullptr};
  nlohmann::json answers_;
};

class AtStart : public lockstep::Callback {
 public:
  explicit AtStart(std::function<void()> call) : call_(std::move(call)) {}
  void on_start(std::int64_t) override { call_(); }

 private:
  std::function<void()> call_;
};

Run::Run(const Invocation& invocation)
    : options_(invocation.options),
      embedded_(options_.dataset_name.empty()),
      world_(program_ranks::make_world(options_.backend, options_.device)),
      directory_(RunDirectory::chosen(options_)) {
  check_ranks(options_, world_.world_size());
  decide_place();
  // Rank 0 first: it makes the cache that the others read.
  program_ranks::prepare_on_ranks(world_, [this] { prepare(); });
}

// Rank 0 looks, so that all ranks do the same.
void Run::decide_place() {
  nlohmann::json place;
  if (is_main() || world_.joins()) {
    const auto snapshot = directory_.newest_snapshot();
    const auto flat = flat_step(directory_.path());
    goes_on_ = snapshot || flat || world_.joins();
    // Python may have gone on from the files of an earlier step of ours.
    from_flat_files_ = flat && (!snapshot || *flat > *snapshot);
    place = {{"goes_on", goes_on_}, {"flat", from_flat_files_}};
    if (goes_on_ && directory_.has_config()) {
      const Options before = directory_.stored_options();
      if (options_.slots == 0) options_.slots = before.slots;
      if (options_.dtype == kAutoType) options_.dtype = before.dtype;
    }
    if (options_.slots == 0) options_.slots = world_.world_size();
    if (options_.dtype == kAutoType) options_.dtype = usual_dtype(world_.device().is_cpu());
    place["slots"] = options_.slots;
    place["dtype"] = options_.dtype;
  }
  if (world_.joins()) {  // the state comes from the other ranks, who are far beyond this place
    from_flat_files_ = false;
    return;
  }
  place = world_.group().broadcast_json(place);
  goes_on_ = place.at("goes_on");
  from_flat_files_ = place.at("flat");
  options_.slots = place.at("slots");
  options_.dtype = place.at("dtype");
  if (goes_on_ && options_.resume == "never") {
    throw InvalidArgument(concat("--resume is never, but ", directory_.path(),
                                 " has a run; name another --experiment-name, or move it away"));
  }
  if (!goes_on_ && options_.resume == "must") {
    throw InvalidArgument(
        concat("--resume is must, but there is nothing to go on from in ", directory_.path()));
  }
}

void Run::prepare() {
  const bool trained_before = directory_.has_model() && options_.tokenizer.empty() &&
                              options_.model_name.empty() && goes_on_;
  const std::int64_t positions = model_config(options_, /*tokenizer_size=*/1).n_positions;
  if (options_.seq_length > positions) {
    say(concat("--seq-length is ", options_.seq_length, ", the model has ", positions,
               " positions: blocks have ", positions, " tokens"));
    options_.seq_length = positions;
  }
  corpus_ = make_corpus(options_, {.embedded = embedded_,
                                   .tokenizer = trained_before ? directory_.tokenizer() : "",
                                   .reports = is_main()});
  model_ = make_model(options_, corpus_->tokenizer);
  check_vocabulary();
  check_graph();
  if (is_main()) directory_.make();
  if (!goes_on_ || !is_main()) return;
  directory_.check_same(model_->config(), corpus_->tokenizer);
  if (!directory_.has_config()) return;
  const std::string changes = changed_options(directory_.stored_options(), options_);
  if (!changes.empty()) say("not as the run was begun: " + changes);
}

void Run::check_vocabulary() const {
  const std::int64_t vocabulary = model_->config().vocab_size;
  if (corpus_->largest_id < vocabulary) return;
  throw InvalidArgument(concat("the data has token ", corpus_->largest_id,
                               ", but the model's vocabulary is ", vocabulary,
                               "; the tokenizer is not the model's"));
}

// Only the fused path can be recorded.
void Run::check_graph() const {
  if (!options_.cuda_graph) return;
  if (world_.device().is_cpu()) throw InvalidArgument("--cuda-graph needs a GPU");
  if (options_.dtype != "bf16-autocast") {
    throw InvalidArgument(
        concat("--cuda-graph needs --dtype bf16-autocast; it is ", options_.dtype));
  }
  const lockstep::Gpt2Config& config = model_->config();
  if (config.embd_pdrop > 0 || config.attn_pdrop > 0 || config.resid_pdrop > 0) {
    throw InvalidArgument("--cuda-graph needs --dropout 0; the model's configuration has dropout");
  }
}

Data Run::make_loader(const std::shared_ptr<const lockstep::TokenDataset>& blocks,
                      bool training) const {
  lockstep::LoaderOptions loading{.batch_size = options_.batch_size,
                                  .shuffle = training,
                                  .drop_last = training,
                                  .seed = static_cast<std::uint64_t>(options_.seed),
                                  .num_workers = static_cast<int>(options_.num_workers)};
  if (!training) loading.dealing = lockstep::Dealing::kExact;
  if (!world_.device().is_cpu()) {
    loading.pin_memory = true;
    loading.device = world_.device();
  }
  return Data(blocks, loading);
}

// How many steps the whole run has.
std::int64_t Run::run_steps() const {
  const std::int64_t blocks = corpus_->training->size();
  const std::int64_t batches = blocks / options_.slots / options_.batch_size;  // of each slot
  if (batches == 0) {
    throw InvalidArgument(concat("the data makes ", blocks, " blocks of ", options_.seq_length,
                                 " tokens; a step needs ", options_.slots * options_.batch_size,
                                 " (slots x --batch-size); lower --batch-size or --seq-length"));
  }
  const std::int64_t per_epoch = (batches + options_.grad_accum - 1) / options_.grad_accum;
  const std::int64_t all = per_epoch * options_.num_epochs;
  return options_.max_steps > 0 ? std::min(all, options_.max_steps) : all;
}

lockstep::TrainerOptions Run::trainer_options(std::int64_t steps) {
  lockstep::TrainerOptions training;
  if (options_.max_steps == 0) training.epochs = options_.num_epochs;
  training.steps = steps;
  if (options_.time_limit > 0) {
    training.time_limit =
        std::chrono::milliseconds(static_cast<std::int64_t>(1000 * options_.time_limit));
  }
  training.optimizer = optimizer_options(options_);
  training.groups = [options = options_](const torch::nn::Module& module) {
    return parameter_groups(module, options);
  };
  training.schedule = schedule_options(options_, steps);
  training.accumulate = options_.grad_accum;
  training.clip_grad_norm = options_.grad_clip;
  training.precision = precision(options_);
  training.cuda_graph = options_.cuda_graph;
  training.seed = static_cast<std::uint64_t>(options_.seed);
  training.slots = static_cast<int>(options_.slots);
  training.ddp.reduction = reduction(options_);
  training.ddp.bucket_cap_mb = options_.bucket_cap_mb;
  training.compression = compression(options_);
  training.shard = sharding(options_);
  training.gather_at_end = !options_.defer_init;
  // Without a frequency after each epoch, and at the end of the run.
  training.evaluate_every = {.steps = options_.eval_freq != 0 ? options_.eval_freq : steps,
                             .epochs = options_.eval_freq == 0 ? 1 : 0};
  training.snapshots = {.directory = directory_.path(),
                        .every = {.steps = options_.ckpt_freq},
                        .keep_last = static_cast<int>(options_.keep_last),
                        // The tutorial's files are made of the snapshot on the disk.
                        .background = !options_.flat_checkpoint,
                        .resume = !from_flat_files_};
  training.log_every = options_.log_freq;
  training.log_all_ranks = true;
  training.tracking = tracking(options_, effective_config(options_));
  training.progress = !options_.no_progress;
  training.unit = options_.loss_on_answers ? "answer tokens" : "tokens";
  if (from_flat_files_) {
    const auto optimizer =
        lockstep::make_optimizer(parameter_groups(*model_, options_), optimizer_options(options_));
    training.initial = read_flat(directory_.path(), *optimizer, flat_format(training.schedule));
  }
  return training;
}

FlatFormat Run::flat_format(const lockstep::LRScheduleOptions& schedule) const {
  return {.prefix = options_.flat_prefix,
          .tied_head = model_->config().tie_word_embeddings,
          .schedule = schedule};
}

void Run::add_callbacks(lockstep::TrainerOptions& training, const Data& data, std::int64_t steps) {
  StepLogOptions logging{
      .tokens_per_slot = options_.batch_size * options_.grad_accum * options_.seq_length,
      .total_steps = steps,
      .flops_per_token = flops_per_token(model_->config(), options_.seq_length)};
  // In float32 the products run at another speed.
  if (options_.dtype != "fp32") logging.peak_flops = peak_flops(device_name(world_.device()));
  training.callbacks.push_back(std::make_shared<StepLog>(world_, data, logging));
  // Not before the Trainer has accepted what it finds there.
  if (is_main()) {
    training.callbacks.push_back(std::make_shared<AtStart>(
        [this] { directory_.write(options_, model_->config(), corpus_->tokenizer); }));
    if (!options_.defer_init) {
      training.callbacks.push_back(std::make_shared<AnswerSamples>(
          model_, corpus_->tokenizer, corpus_->held_out, options_.samples));
    }
  }
  if (options_.flat_checkpoint) {
    training.callbacks.push_back(
        std::make_shared<FlatCheckpoint>(world_, directory_, flat_format(training.schedule)));
  }
}

constexpr auto kLoss = [](auto& model, const lockstep::TokenBlock& batch) {
  const lockstep::Gpt2Loss loss = model(batch.input, batch.labels);
  return lockstep::LossSum{.sum = loss.sum, .count = loss.count, .counted = loss.counted};
};

lockstep::TrainResult Run::fit(const lockstep::TrainerOptions& training, Data& data) {
  lockstep::Trainer trainer(world_, training);
  if (!corpus_->validation) return trainer.fit(model_, data, kLoss);
  Data held_out = make_loader(corpus_->validation, /*training=*/false);
  return trainer.fit(model_, data, kLoss, lockstep::Evaluation{held_out, kLoss});
}

void Run::ask_questions(const char* when) {
  if (corpus_->held_out.empty() || !is_main() || options_.defer_init) return;
  const ExactMatch result = ask(model_, corpus_->tokenizer, corpus_->held_out);
  say(concat("held-out instructions answered exactly ", when, " training: ", result.summary()));
  const std::string file = directory_.path() + "/answers.json";
  if (goes_on_) {  // what was asked before is in the file of an earlier start
    std::ifstream earlier(file);
    answers_ = nlohmann::json::parse(earlier, nullptr, /*allow_exceptions=*/false);
    if (!answers_.is_object()) answers_ = nlohmann::json::object();
  }
  answers_[when] = result.to_json();
  if (std::string_view(when) == "after") {
    std::printf("%s", samples(corpus_->held_out, result, options_.samples).c_str());
    lockstep::write_durably(file, answers_.dump(2) + "\n");
  }
  std::fflush(stdout);
}

void Run::say(const std::string& line) const {
  if (!is_main()) return;
  std::printf("train_llm: %s\n", line.c_str());
  std::fflush(stdout);
}

int Run::train() {
  const std::int64_t steps = run_steps();
  lockstep::TrainerOptions training = trainer_options(steps);
  Data data = make_loader(corpus_->training, /*training=*/true);
  add_callbacks(training, data, steps);
  const std::int64_t tokens =
      options_.slots * options_.batch_size * options_.grad_accum * options_.seq_length;
  say(corpus_->what);
  say(concat(lockstep::short_number(static_cast<double>(model_->config().parameter_count())),
             " parameters, ", options_.dtype, ", ", world_.world_size(), " rank(s) on ",
             world_.device().str(), ", ", options_.slots, " slot(s), ", steps, " steps of ", tokens,
             " tokens; run directory ", directory_.path()));
  if (world_.device().is_cpu() && options_.dtype != "fp32") {
    say(concat("--dtype is ", options_.dtype,
               "; few CPUs compute in 16 bits, and the others are several times slower than with "
               "--dtype fp32"));
  }
  if (!goes_on_) ask_questions("before");
  const auto began = std::chrono::steady_clock::now();
  const lockstep::TrainResult result = fit(training, data);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  const std::int64_t done = result.step - result.resumed_from;
  say(concat("trained ", done, " steps, ",
             lockstep::short_number(static_cast<double>(done * tokens)), " tokens, in ",
             static_cast<int>(seconds.count()), " s; logs in ", directory_.path(),
             "/metrics, snapshots in ", directory_.snapshots()));
  ask_questions("after");
  return program_ranks::end_run(world_, result);
}

// What can be done about memory depends on what there is to lower.
std::string what_to_lower(const Options& options) {
  std::string advice;
  const auto add = [&](const std::string& what) {
    advice += concat(advice.empty() ? "" : ", ", what);
  };
  if (options.batch_size > 1) {
    add(concat("--batch-size ", options.batch_size / 2, " with --grad-accum ",
               options.grad_accum * 2, " (the same steps)"));
  }
  if (!options.activation_checkpointing) add("--activation-checkpointing");
  if (options.dtype == "fp32") add("--dtype bf16");
  if (options.shard < 3) add("--shard 3 on several ranks");
  add(concat("--seq-length ", options.seq_length / 2));
  return advice;
}

// Each device and allocator has an error of its own for it, some without a type.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  const std::string text = lockstep::first_line(error.what());
  return text.find("out of memory") != std::string::npos ||
         text.find("not enough memory") != std::string::npos ||
         text.find("can't allocate memory") != std::string::npos;
}

}  // namespace

int train(const Invocation& invocation) {
  try {
    return Run(invocation).train();
  } catch (const program_ranks::SaidElsewhere&) {
    return program_ranks::kBadArguments;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    const Options& options = invocation.options;
    throw lockstep::Error(concat("out of memory with --batch-size ", options.batch_size,
                                 " and --seq-length ", options.seq_length, "; try ",
                                 what_to_lower(options), " (", lockstep::first_line(error.what()),
                                 ")"));
  }
}

}  // namespace train_llm
