// A training loop by hand under recoverable(), whose ranks kill themselves where they are told to.
// recoverable_test.py compares what it leaves behind with a run in which nobody died.
//
// OUT: a folder. STEPS. KILLS: "RANK:POINT:NUMBER,...", each of which happens once in a job.
// HOLD: "RANK:STEP", a rank that is behind when the others have committed that step.
#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/ddp.h"
#include "lockstep/ema.h"
#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "lockstep/lr_schedule.h"
#include "lockstep/module_state.h"
#include "lockstep/optimizer.h"
#include "lockstep/record.h"
#include "lockstep/recoverable.h"
#include "lockstep/snapshot.h"
#include "lockstep/torch_file.h"
#include "lockstep/world.h"

namespace {

using lockstep::concat;

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

const std::string kOut = setting("OUT", ".");
const std::string kRank = setting("LOCKSTEP_SLOT", "0");  // which it keeps when others are left out
const bool kHasBuffers = setting("BUFFERS", "1") == "1";

/// True for the first process of the job that asks.
bool first_time(const std::string& mark) {
  const int file = ::open((kOut + "/" + mark).c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  ::close(file);
  return true;
}

/// Whether the launcher knows that every rank of the present membership can be carried over.
bool all_can_be_replaced() {
  std::ifstream events(setting("LOCKSTEP_RUN_DIR", "") + "/events.jsonl");
  std::map<std::int64_t, std::set<std::int64_t>> able = {{-1, {}}};  // by membership
  std::int64_t newest = -1;
  std::set<std::int64_t> absent;
  for (std::string line; std::getline(events, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded()) continue;  // it is being written
    const auto kind = event.at("kind").get<std::string>();
    if (kind == "recovers") able[event.at("epoch")].insert(event.at("slot").get<std::int64_t>());
    if (kind == "left_out") absent.insert(event.at("slot").get<std::int64_t>());
    if (kind == "revoked" || kind == "recovers")
      newest = std::max<std::int64_t>(newest, event.at("epoch"));
  }
  return std::to_string(able[newest].size() + absent.size()) == setting("LOCKSTEP_SLOTS", "1");
}

void await(const std::function<bool()>& state, const std::string& what) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!state()) {
    if (std::chrono::steady_clock::now() > limit) throw lockstep::Timeout(what);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

/// Dies here if it is to. In a step, not before the death could be recovered from; elsewhere others
/// are being replaced.
void pass(const std::string& point, std::int64_t number) {
  std::istringstream kills(setting("KILLS", ""));
  for (std::string kill; std::getline(kills, kill, ',');) {
    if (kill != concat(kRank, ":", point, ":", number) || !first_time("killed_" + kill)) continue;
    const bool in_a_step = point != "start" && point != "forming";
    if (in_a_step) await(all_can_be_replaced, "the ranks cannot be replaced");
    ::kill(::getpid(), SIGKILL);
  }
}

std::string committed_mark(const std::string& rank, std::int64_t step) {
  return concat("committed_", rank, "_", step);
}

/// A rank that is held has computed the step, and waits for nobody in a collective of its own until
/// the launcher's word throws it out; the others have committed the step by then.
void hold(lockstep::World& world, std::int64_t step) {
  if (setting("HOLD", "") != concat(kRank, ":", step) || !first_time("held")) return;
  world.barrier();
}

/// Of the one that dies while another is held.
void await_commit_of_rank_0(std::int64_t step) {
  if (setting("HOLD", "").empty()) return;
  await([step] { return std::filesystem::exists(kOut + "/" + committed_mark("0", step)); },
        "rank 0 did not commit");
}

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
  torch::nn::BatchNorm1d norm{torch::nn::BatchNorm1dOptions(24).track_running_stats(kHasBuffers)};
  torch::nn::Linear second{24, 1};
};
TORCH_MODULE(Net);

lockstep::TensorDataset<2> samples() {
  torch::manual_seed(11);
  const auto inputs = torch::randn({230, 6});
  return lockstep::TensorDataset(inputs, torch::sin(inputs.sum(1, /*keepdim=*/true)));
}

/// The mean over all slots, whose losses are added up in the order of ranks.
double mean_loss(lockstep::World& world, double loss, int slots) {
  const auto all = torch::empty({world.world_size()}, torch::kDouble);
  world.group().all_gather_into_tensor(all, torch::full({1}, loss, torch::kDouble));
  double sum = 0;
  for (int rank = 0; rank < world.world_size(); ++rank) sum += all[rank].item<double>();
  return sum / slots;
}

/// The samples of all slots are used, however few processes there are.
template <typename Data>
void deal(Data& data, const lockstep::RecoverableSlots& slots) {
  lockstep::Deal deal{.slots = slots.count, .mine = {}};
  for (int slot = slots.first; slot < slots.last; ++slot) deal.mine.push_back(slot);
  if (data.dealt().slots != deal.slots || data.dealt().mine != deal.mine) data.deal(deal);
}

/// Forward and backward for the slots of this process, before all processes average: the gradients
/// are those of the mean over slots. Returns the sum of the losses.
template <typename Model, typename Data>
double compute(Model& ddp, Data& data, const lockstep::RecoverableStep& step, int processes) {
  const int slots = step.slots().last - step.slots().first;
  double sum = 0;
  for (int slot = 0; slot < slots; ++slot) {
    const auto [input, target] = data.next().value().batch.value();
    std::optional<lockstep::NoSync> alone;
    if (slot + 1 < slots) alone.emplace(ddp.engine());
    auto loss = torch::mse_loss(ddp.forward(input), target);
    sum += loss.template item<double>();
    if (processes != step.slots().count) loss = loss * processes / step.slots().count;
    if (slot + 1 == slots) pass("backward", step.number());
    loss.backward();
  }
  return sum;
}

int run() {
  pass("start", setting("LOCKSTEP_JOINS", "") == "1" ? 1 : 0);
  torch::set_num_threads(1);
  lockstep::World world = lockstep::init();
  torch::manual_seed(world.rank());  // rank 0's weights are the ones that count
  Net net;
  lockstep::AdamW optimizer(lockstep::named_parameters(*net), {.lr = 0.01});
  lockstep::LRSchedule schedule(lockstep::CosineSchedule{.warmup_steps = 5, .total_steps = 60});
  std::optional<lockstep::Ema> ema;
  std::vector<double> losses;
  lockstep::Loader data(samples(), {.batch_size = 5, .shuffle = true, .num_workers = 1});
  std::unique_ptr<lockstep::SnapshotStore> snapshots;
  std::int64_t formed = 0;
  const std::int64_t steps = std::stoll(setting("STEPS", "30"));

  // All ranks begin with the weights of rank 0, also those of the average.
  if (!world.joins()) {
    for (auto& tensor : net->parameters()) world.group().broadcast(tensor.detach());
  }
  ema.emplace(*net, lockstep::EmaOptions{.decay = 0.9});

  const auto save = [&](std::int64_t step) {
    lockstep::Snapshot snapshot{.step = step, .slots = world.world_size()};
    snapshot.parts["model"] = lockstep::module_state(*net);
    snapshot.parts["optimizer"] = optimizer.state();
    snapshots->save(snapshot);
  };
  const std::int64_t next = lockstep::recoverable(
      world,
      {.module = net.ptr(),
       .optimizer = optimizer,
       .others = {{"average", *ema}, {"losses", lockstep::recoverable_value(losses)}},
       .steps = steps,
       .seed = 7},
      [&](lockstep::World& world) {
        pass("forming", ++formed);
        if (snapshots) {
          snapshots->readmit();
        } else {
          snapshots = std::make_unique<lockstep::SnapshotStore>(
              world, lockstep::SnapshotStoreOptions{.directory = kOut + "/snapshots",
                                                    .background = false});
        }
        lockstep::DistributedDataParallel ddp(world, net, {.broadcast_buffers = false});
        return [&, ddp = std::move(ddp)](lockstep::RecoverableStep& step) mutable {
          const std::int64_t number = step.number();
          pass("step", number);
          if (number % 8 == 0) save(number);
          deal(data, step.slots());
          const std::int64_t steps_per_epoch = data.steps_per_epoch().value();
          data.begin_epoch(number / steps_per_epoch, number % steps_per_epoch);
          ddp.zero_grad();
          const double loss = compute(ddp, data, step, world.world_size());
          pass("gather", number);
          const double mean = mean_loss(world, loss, step.slots().count);
          hold(world, number);
          pass("commit", number);
          step.commit([&] {
            pass("apply", number);
            schedule.apply(optimizer, number);
            optimizer.step();
            pass("update", number);
            ema->update();
            losses.push_back(mean);
            data.commit(number % steps_per_epoch);
          });
          std::ofstream(kOut + "/" + committed_mark(kRank, number));
          await_commit_of_rank_0(number);
          pass("committed", number);
        };
      });
  if (next != steps) throw lockstep::Error(concat("ended before step ", next));
  snapshots.reset();

  std::map<std::string, torch::Tensor> left;
  const auto add = [&](const std::string& part, const lockstep::State& state) {
    for (const auto& [name, tensor] : state.tensors) left[part + "." + name] = tensor;
  };
  add("model", lockstep::module_state(*net));
  add("optimizer", optimizer.state());
  add("average", ema->state());
  left["losses"] = torch::tensor(losses, torch::kDouble);
  lockstep::save_safetensors(kOut + "/final_" + kRank + ".safetensors", left);
  return 0;
}

}  // namespace

int main() {
  return lockstep::record(run);
}
