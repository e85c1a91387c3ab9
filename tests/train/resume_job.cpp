// A training job that uses everything that could make a resumed run differ from an undisturbed one.
// resume_test.py runs it, kills it, runs it again and compares what it leaves behind;
// recovery_test.py kills ranks of it while the others go on.
#include <fcntl.h>
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/loader.h"
#include "lockstep/record.h"
#include "lockstep/sync_batch_norm.h"
#include "lockstep/trainer.h"

namespace {

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}
std::int64_t number(const char* name, std::int64_t otherwise) {
  return std::stoll(setting(name, std::to_string(otherwise)));
}

/// The number of this process's place in the job, which it keeps when others are left out.
std::string slot() {
  return setting("LOCKSTEP_SLOT", setting("RANK", "0"));
}

/// Samples with noise of their own, which must not depend on who reads them.
struct Noisy {
  std::int64_t size() const { return 230; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index, lockstep::Random& random) const {
    auto x = torch::empty({6});
    for (std::int64_t i = 0; i < 6; ++i) x[i] = random.normal() + 0.01 * index;
    return {x, torch::sin(x.sum(0, /*keepdim=*/true))};
  }
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return second(torch::dropout(torch::relu(norm(first(x))), 0.3, is_training()));
  }
  torch::nn::Linear first{6, 24};
  torch::nn::BatchNorm1d norm{24};
  torch::nn::Linear second{24, 1};
};
TORCH_MODULE(Net);

/// Normalizes over the batches of all ranks: there must be a process for each slot.
struct TogetherImpl : torch::nn::Module {
  explicit TogetherImpl(const lockstep::ProcessGroup& group)
      : norm(group, lockstep::SyncBatchNormOptions{.num_features = 24}) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(norm(first(x)))); }
  torch::nn::Linear first{6, 24};
  lockstep::SyncBatchNorm norm;
  torch::nn::Linear second{24, 1};
};
TORCH_MODULE(Together);

/// Sentences over a small vocabulary, in which each token depends on the one before.
struct Sentences {
  static constexpr std::int64_t kLength = 12;
  std::int64_t size() const { return 230; }
  std::pair<torch::Tensor, torch::Tensor> get(std::int64_t index, lockstep::Random& random) const {
    auto ids = torch::empty({kLength + 1}, torch::kLong);
    std::int64_t token = index % 31;
    for (std::int64_t i = 0; i <= kLength; ++i) {
      ids[i] = token;
      token = (token * 3 + static_cast<std::int64_t>(random.uniform() * 4)) % 31;
    }
    return {ids.slice(0, 0, kLength), ids.slice(0, 1, kLength + 1)};
  }
};

/// Whether misfortune is to come over this process: KILL_RANK, or KILL_RANK_TOO. With KILL_ONCE,
/// the path of a file, only once in a job for each of them.
bool is_victim() {
  const std::int64_t rank = std::stoll(slot());
  if (rank != number("KILL_RANK", 0) && rank != number("KILL_RANK_TOO", -1)) return false;
  const std::string once = setting("KILL_ONCE", "");
  const std::string mark = once + (rank == number("KILL_RANK", 0) ? "" : "_too");
  return once.empty() || ::open(mark.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0644) >= 0;
}

/// Two that are to die do it together: neither hears of the other's death first.
void await_the_other_victim() {
  const std::string once = setting("KILL_ONCE", "");
  if (number("KILL_RANK_TOO", -1) < 0 || once.empty()) return;
  const bool is_first = std::stoll(slot()) == number("KILL_RANK", 0);
  const std::string mark = once + (is_first ? "_too" : "");
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (::access(mark.c_str(), F_OK) != 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Dies without a chance to say goodbye, or with KILL_SIGNAL in another way.
void die() {
  if (!is_victim()) return;
  await_the_other_victim();
  ::kill(::getpid(), static_cast<int>(number("KILL_SIGNAL", SIGKILL)));
}

/// What a careless loss function does.
[[gnu::noinline]] void loop_for_ever() {
  for (volatile bool again = true; again;) {
  }
}

/// What a cosmic ray does: the lowest bit of a number.
void flip_a_bit(const torch::nn::Module& module) {
  torch::Tensor weights = module.parameters().back().detach().view(-1);
  static_cast<std::uint32_t*>(weights.mutable_data_ptr())[0] ^= 1;
}

class Killer : public lockstep::Callback {
 public:
  explicit Killer(const torch::nn::Module& module) : module_(module) {}

  void use(lockstep::World& world) { world_ = &world; }

  void on_start(std::int64_t step) override { step_ = step; }
  void on_step(const lockstep::StepReport& report) override {
    if (report.step == number("HELD_IN_AGREEMENT", -2) + 1) await_those_ahead();
    if (report.step == number("KILL_AT_STEP", -1)) die();
    if (report.step == number("FLIP_AT_STEP", -1) && is_victim()) flip_a_bit(module_);
    forwards_ = 0;
    step_ = report.step;
  }
  void on_save(std::int64_t step) override {
    if (step == number("KILL_IN_SAVE", -1)) die();
  }
  void on_epoch_end(std::int64_t epoch) override {
    if (epoch == number("KILL_AT_EPOCH", -1)) die();
  }
  void on_end(const lockstep::TrainResult&) override {
    if (number("KILL_AT_END", 0) != 0) die();
  }

  /// Called for each batch: the second one of a step is in the middle of it.
  void on_forward() {
    if (++forwards_ == 2 && step_ == number("KILL_IN_STEP", -1)) die();
    if (forwards_ == 2 && step_ == number("LOOP_IN_STEP", -1) && is_victim()) loop_for_ever();
    // SLOW_UNTIL is the path of a file: once it is there, nothing holds the run up any more.
    const std::string until = setting("SLOW_UNTIL", "");
    if (!until.empty() && ::access(until.c_str(), F_OK) == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(number("SLOW_MS", 0)));
    // HELD_AT_STEP: no step after it is begun before that.
    while (!until.empty() && step_ >= number("HELD_AT_STEP", 1 << 30) &&
           ::access(until.c_str(), F_OK) != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// NAN_IN_STEP: a step in which rank 0's loss has a value and no gradient, so that it is left
  /// out.
  torch::Tensor poisoned(const torch::Tensor& loss) const {
    const bool poison = step_ == number("NAN_IN_STEP", -1) && slot() == "0";
    return poison ? loss + torch::sqrt(loss * 0) : loss;
  }
  void on_metrics() {
    if (step_ >= number("KILL_IN_EVALUATION", 1 << 30)) die();
  }

  /// Of a sharded run: all ranks agree, in a barrier, that each has what the update of its part
  /// needs. KILL_BEFORE_AGREEMENT and KILL_AFTER_AGREEMENT name a step, and HELD_IN_AGREEMENT a
  /// step in which the ranks of HELD_RANKS do not learn that all have come.
  void before_barrier() {
    if (step_ == number("KILL_BEFORE_AGREEMENT", -1)) die();
    const bool holds = step_ == number("HELD_IN_AGREEMENT", -1) &&
                       setting("HELD_RANKS", "").find(slot()) != std::string::npos;
    const std::string mark = setting("KILL_ONCE", "") + "_held_" + slot();
    if (!holds || ::open(mark.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0644) < 0) return;
    wait_in_barrier();  // the others' agreement
    wait_in_barrier();  // to which the one that dies does not come: the launcher's word ends it
  }
  void after_barrier() {
    if (step_ == number("KILL_AFTER_AGREEMENT", -1)) die();
  }

 private:
  void wait_in_barrier() {
    try {
      world_->barrier();
    } catch (const std::exception&) {
    }
  }

  static std::string ahead_mark(const std::string& rank) {
    return setting("KILL_ONCE", "") + "_ahead_" + rank;
  }
  /// The one that dies while others are held does so when all those that are not have committed.
  /// Those go no further: their next operation would meet the barrier that the others are in.
  void await_those_ahead() {
    const bool first = ::open(ahead_mark(slot()).c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0644) >= 0;
    if (slot() != setting("KILL_RANK", "")) {
      const bool ahead = setting("AHEAD_RANKS", "").find(slot()) != std::string::npos;
      if (first && ahead) wait_in_barrier();
      return;
    }
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    for (const char rank : setting("AHEAD_RANKS", "")) {
      while (::access(ahead_mark(std::string(1, rank)).c_str(), F_OK) != 0 &&
             std::chrono::steady_clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  const torch::nn::Module& module_;
  lockstep::World* world_ = nullptr;
  std::int64_t forwards_ = 0, step_ = 0;
};

/// Calls the killer around each barrier of this thread, as long as it lives.
class BarrierWatch {
 public:
  BarrierWatch(Killer& killer, lockstep::World& world) {
    killer_ = &killer;
    killer.use(world);
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&before, &after).scopes({at::RecordScope::FUNCTION}));
  }
  BarrierWatch(const BarrierWatch&) = delete;
  BarrierWatch& operator=(const BarrierWatch&) = delete;
  ~BarrierWatch() { at::removeCallback(handle_); }

 private:
  static bool is_barrier(const at::RecordFunction& function) {
    return !busy_ && std::string(function.name()) == "c10d::barrier";
  }
  static std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
    if (!is_barrier(function)) return nullptr;
    busy_ = true;
    killer_->before_barrier();
    busy_ = false;
    return nullptr;
  }
  static void after(const at::RecordFunction& function, at::ObserverContext*) {
    if (is_barrier(function)) killer_->after_barrier();
  }

  static inline Killer* killer_ = nullptr;
  static inline thread_local bool busy_ = false;
  at::CallbackHandle handle_ = 0;
};

/// For whoever kills from outside.
void leave_process_id() {
  const std::string folder = setting("PROCESS_IDS", "");
  if (folder.empty() || setting("LOCKSTEP_SPARE", "") == "1") return;  // it has no rank yet
  const std::string path = folder + "/" + slot();
  std::ofstream(path + ".new") << ::getpid();
  std::rename((path + ".new").c_str(), path.c_str());
}

/// A process that replaces another and dies so many milliseconds after its start; or at once, as
/// long as there is a file of its slot's number in the folder BAD_SLOTS.
void die_while_joining() {
  const std::string bad = setting("BAD_SLOTS", "") + "/" + slot();
  const bool joins = setting("LOCKSTEP_JOINS", "") == "1";
  if (joins && ::access(bad.c_str(), F_OK) == 0) ::kill(::getpid(), SIGKILL);
  const std::int64_t after = number("KILL_JOINING_MS", -1);
  if (after < 0 || !joins) return;
  const std::string mark = setting("KILL_JOINING_ONCE", "");
  if (::open(mark.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0644) < 0) return;
  std::thread([after] {
    std::this_thread::sleep_for(std::chrono::milliseconds(after));
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

/// MACHINES: the ranks believe to be on so many, in equal blocks, m0 and so on. A process that
/// replaces another is on JOINS_MACHINE where that is given.
void choose_machine() {
  const std::int64_t machines = number("MACHINES", 1);
  if (machines == 1) return;
  const std::int64_t machine = std::stoll(slot()) * machines / number("WORLD_SIZE", 1);
  std::string name = "m" + std::to_string(machine);
  if (setting("LOCKSTEP_JOINS", "") == "1") name = setting("JOINS_MACHINE", name);
  ::setenv("LOCKSTEP_MACHINE", name.c_str(), 1);
}

/// DEVICE and BACKEND: several ranks can share a GPU where Gloo connects them. Its kernels are then
/// told to give the same bits every time.
lockstep::World make_world() {
  const std::string device = setting("DEVICE", "");
  choose_machine();
  if (!device.empty()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  lockstep::World world = lockstep::init({.backend = setting("BACKEND", ""), .device = device});
  leave_process_id();  // of what was a spare until now
  die_while_joining();
  return world;
}

lockstep::TrackingOptions tracking() {
  lockstep::TrackingOptions tracking;
  lockstep::choose_sinks(tracking, setting("TRACK", ""));
  return tracking;
}

/// SHARD: the stage; REPLICAS: how many ranks hold a part; COPIES: another rank has a copy of each.
void shard(lockstep::TrainerOptions& options, const std::vector<std::string>& units) {
  const std::int64_t stage = number("SHARD", 0);
  if (stage == 0) return;
  options.ema_decay = 0;
  options.shard = lockstep::ShardedOptions{.stage = static_cast<lockstep::ShardStage>(stage),
                                           .units = units,
                                           .replicas = static_cast<int>(number("REPLICAS", 1)),
                                           .peer_copies = number("COPIES", 0) != 0};
}

lockstep::TrainerOptions options_for(const std::shared_ptr<Killer>& killer) {
  return {.steps = number("STEPS", 30),
          .optimizer = lockstep::AdamWOptions{.lr = 0.01},
          .schedule = lockstep::CosineSchedule{.warmup_steps = 5, .total_steps = 40},
          .accumulate = 2,
          .clip_grad_norm = 1.0,
          .precision = lockstep::Precision::bf16_autocast,
          .cuda_graph = number("RECORDED", 0) != 0,
          .ema_decay = 0.9,
          .non_finite = number("NAN_IN_STEP", -1) < 0 ? lockstep::NonFinite::raise
                                                      : lockstep::NonFinite::skip,
          .seed = 7,
          .compression = lockstep::parse_compression(setting("COMPRESS", "none")),
          .mirror_errors = setting("MIRROR", "") == "never" ? lockstep::MirrorErrors::never
                                                            : lockstep::MirrorErrors::automatic,
          .verify_every = number("VERIFY_EVERY", 100),
          .snapshots = {.directory = setting("DIRECTORY", "run"),
                        .every = {.steps = number("SAVE_EVERY", 4)},
                        .keep_last = 0,
                        .keep_best = true,
                        .background = number("BACKGROUND", 1) != 0,
                        .per_node = number("PER_NODE", 0) != 0},
          .log_every = 1,
          .log_all_ranks = number("LOG_ALL_RANKS", 0) != 0,
          .tracking = tracking(),
          .progress = number("PROGRESS", 0) != 0,
          .callbacks = {killer}};
}

int run_gpt() {
  lockstep::Gpt2Config config = lockstep::Gpt2Config::named("tiny");
  config.vocab_size = 32;
  config.n_positions = Sentences::kLength;
  config.n_embd = 32;
  config.n_layer = 2;
  config.n_head = 2;
  lockstep::Gpt2 model(config);
  const auto killer = std::make_shared<Killer>(*model);
  const auto threads = static_cast<int>(number("LOADER_THREADS", 2));
  lockstep::Loader data(Sentences{}, {.batch_size = 5, .shuffle = true, .num_workers = threads});
  lockstep::Loader held_out(Sentences{}, {.batch_size = 7, .dealing = lockstep::Dealing::kExact});
  const auto loss_of = [](auto& gpt, const auto& batch) {
    const lockstep::Gpt2Loss loss = gpt(batch.first, batch.second);
    return lockstep::LossSum{.sum = loss.sum, .count = static_cast<double>(loss.count)};
  };
  lockstep::TrainerOptions options = options_for(killer);
  options.precision =
      lockstep::Precision::float32;  // many CPUs are very slow with larger bf16 products
  shard(options, {"h.*"});
  lockstep::World world = make_world();
  const BarrierWatch watch(*killer, world);
  lockstep::Trainer trainer(world, options);
  trainer.fit(
      model, data,
      [&](auto& gpt, const auto& batch) {
        killer->on_forward();
        return loss_of(gpt, batch);
      },
      lockstep::Evaluation{held_out, [&](auto& gpt, const auto& batch) {
                             killer->on_metrics();
                             return loss_of(gpt, batch);
                           }});
  return 0;
}

int run_together() {
  lockstep::World world = make_world();
  Together net(world.group());
  const auto killer = std::make_shared<Killer>(*net);
  lockstep::Loader data(Noisy{}, {.batch_size = 5, .shuffle = true});
  lockstep::Loader held_out(Noisy{}, {.batch_size = 7, .dealing = lockstep::Dealing::kExact});
  const auto squared_error = [&](auto& model, const auto& batch) {
    killer->on_forward();
    return torch::mse_loss(model(batch.first), batch.second);
  };
  lockstep::TrainerOptions options = options_for(killer);
  options.precision = lockstep::Precision::float32;
  lockstep::Trainer(world, options)
      .fit(net, data, squared_error, lockstep::Evaluation{held_out, squared_error});
  return 0;
}

template <typename Model>
int run_on_noise(Model net) {
  const auto killer = std::make_shared<Killer>(*net);
  const auto threads = static_cast<int>(number("LOADER_THREADS", 2));
  lockstep::Loader data(Noisy{}, {.batch_size = 5, .shuffle = true, .num_workers = threads});
  lockstep::Loader held_out(Noisy{}, {.batch_size = 7, .dealing = lockstep::Dealing::kExact});
  const auto squared_error = [&](auto& model, const auto& batch) {
    killer->on_forward();
    return killer->poisoned(torch::mse_loss(model(batch.first), batch.second));
  };
  // Uneven on purpose: how much a batch counts depends on what is in it.
  const auto masked_error = [&](auto& model, const auto& batch) {
    killer->on_forward();
    const auto mask = (batch.second > -0.5).to(torch::kFloat);
    const auto error = (model(batch.first).to(torch::kFloat) - batch.second).square() * mask;
    return lockstep::LossSum{.sum = error.sum(), .count = mask.sum().template item<double>() + 1};
  };
  lockstep::TrainerOptions options = options_for(killer);
  shard(options, {});
  lockstep::World world = make_world();
  const BarrierWatch watch(*killer, world);
  lockstep::Trainer trainer(world, options);
  const lockstep::Evaluation evaluation{held_out, [&](auto& model, const auto& batch) {
                                          killer->on_metrics();
                                          return torch::mse_loss(model(batch.first), batch.second);
                                        }};
  if (number("MASKED", 0) != 0) {
    trainer.fit(net, data, masked_error, evaluation);
  } else {
    trainer.fit(net, data, squared_error, evaluation);
  }
  return 0;
}

int run() {
  leave_process_id();
  die_while_joining();
  torch::set_num_threads(1);
  torch::manual_seed(std::stoull(slot()));  // rank 0's weights are the ones that count
  const std::string model = setting("MODEL", "net");
  if (model == "gpt") return run_gpt();
  if (model == "together") return run_together();
  // In parts on four ranks, two of them have none.
  if (model == "small") return run_on_noise(torch::nn::Linear(6, 1));
  return run_on_noise(Net());
}

}  // namespace

int main() {
  return lockstep::record(run);
}
