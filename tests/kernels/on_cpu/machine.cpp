#include "tests/kernels/on_cpu/machine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "tests/kernels/on_cpu/cuda_words.h"
#include "tests/kernels/on_cpu/deadlock.h"
#include "tests/kernels/on_cpu/words.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace lockstep::kernels::on_cpu {
namespace {

Machine* now_running = nullptr;

}  // namespace

Machine& machine() {
  return *now_running;
}

void fail(const std::string& words) {
  machine().fail(words);
}

// A seed chooses how often things happen on their own, and whether threads take turns evenly or
// some warps are far ahead of others: of several candidates the one of the first warp goes on.
Machine::Machine(const Launch& launch, const Schedule& schedule,
                 const std::function<void()>& kernel, const Stacks& stacks, dim3 first_block)
    : kernel_(kernel),
      lateness_(schedule.lateness),
      dice_(schedule.seed),
      turns_per_work_(std::uint64_t{2} << 3 * dice_.roll(4)),
      candidates_(dice_.roll(2) == 0 ? 1 : 8),
      first_block_(first_block) {
  for (int rank = 0; rank < launch.cluster; ++rank) {
    blocks_.push_back(std::make_unique<Block>(rank, launch.threads, launch.shared_bytes));
    for (int thread = 0; thread < launch.threads; ++thread) {
      Fiber& fiber = fibers_.emplace_back();
      fiber.block = rank;
      fiber.thread = thread;
      prepare(fiber, stacks[fibers_.size() - 1], &Machine::thread_main);
      runnable_.push_back(&fiber);
    }
  }
  priorities_.resize(fibers_.size() / kWarpThreads);
  for (auto& priority : priorities_) priority = dice_.roll(1 << 20);
}

void Machine::run() {
  Machine* const before = std::exchange(now_running, this);
  Fiber& first = *take_runnable();
  enter(first);
  swapcontext(&main_, &first.context);
  now_running = before;
  if (!failure_.empty()) throw Failure(failure_);
  for (const auto& does : at_end_) does();
}

void Machine::thread_main() {
  Machine& machine = on_cpu::machine();
  try {
    machine.kernel_();
  } catch (const std::exception& error) {
    machine.fail(error.what());
  }
  machine.end_thread();
}

void Machine::end_thread() {
  running_->ended = true;
  block().end_thread(*running_);
  if (++ended_ == fibers_.size()) check_end();
  end_cluster_barrier_if_complete();
  Fiber* fiber = next();
  if (fiber == nullptr) setcontext(&main_);
  enter(*fiber);
  setcontext(&fiber->context);
}

void Machine::check_end() {
  const auto loads = std::ranges::count_if(
      under_way_, [](const auto& work) { return work->is_load && !work->done; });
  if (loads > 0) fail(words("ended, as all others, while ", loads, " loads were under way"));
  under_way_.clear();
}

void Machine::enter(Fiber& fiber) {
  running_ = &fiber;
  fiber.wait = {};
  threadIdx = {static_cast<unsigned>(fiber.thread), 0, 0};
  blockIdx = {first_block_.x + static_cast<unsigned>(fiber.block), first_block_.y, first_block_.z};
}

void Machine::wait(const Wait& wait) {
  Fiber& self = *running_;
  self.wait = wait;
  Fiber* fiber = next();
  enter(*fiber);
  if (fiber != &self) swapcontext(&self.context, &fiber->context);
}

void Machine::wake(Fiber& fiber) {
  runnable_.push_back(&fiber);
}

void Machine::pause() {
  if (dice_.roll(2) == 0) return;
  wake(*running_);
  wait({});
}

void Machine::linger() {
  if (is_early() || (lateness_ == Lateness::random && dice_.roll(2) == 0)) return;
  lingering_.push_back(running_);
  wait({});
}

void Machine::sync_cluster() {
  in_cluster_barrier_.push_back(running_);
  end_cluster_barrier_if_complete();
  wait({.kind = Wait::Kind::cluster, .call = "sync_cluster()"});
}

// It is for those that have not ended.
void Machine::end_cluster_barrier_if_complete() {
  if (in_cluster_barrier_.size() + ended_ < fibers_.size()) return;
  for (Fiber* fiber : in_cluster_barrier_) wake(*fiber);
  in_cluster_barrier_.clear();
}

std::shared_ptr<Work> Machine::start(std::function<void()> does, bool is_load) {
  auto work = std::make_shared<Work>(Work{.does = std::move(does), .is_load = is_load});
  if (is_early()) {
    work->happen();
  } else if (is_load || lateness_ == Lateness::random) {
    under_way_.push_back(work);
  }
  return work;
}

// Who goes on; null when all have ended.
Fiber* Machine::next() {
  for (;;) {
    const bool can_happen = !under_way_.empty() || !lingering_.empty();
    if (runnable_.empty()) {
      if (ended_ == fibers_.size()) return nullptr;
      if (!can_happen) stop(deadlock_report(fibers_, blocks_));
      let_one_happen();
    } else if (lateness_ == Lateness::random && can_happen && dice_.roll(turns_per_work_) == 0) {
      let_one_happen();
    } else {
      return take_runnable();
    }
  }
}

void Machine::let_one_happen() {
  const auto take = [&](auto& all, std::size_t place) {
    std::swap(all[place], all.back());
    auto taken = std::move(all.back());
    all.pop_back();
    return taken;
  };
  const std::size_t place = dice_.roll(under_way_.size() + lingering_.size());
  if (place >= under_way_.size()) return wake(*take(lingering_, place - under_way_.size()));
  const std::shared_ptr<Work> work = take(under_way_, place);
  is_between_threads_ = true;
  work->happen();
  is_between_threads_ = false;
}

Fiber* Machine::take_runnable() {
  constexpr std::uint64_t kTurnsOfOrder = 512;
  if (dice_.roll(kTurnsOfOrder) == 0) {
    priorities_[dice_.roll(priorities_.size())] = dice_.roll(1 << 20);
  }
  const auto priority = [&](std::size_t place) {
    const Fiber& fiber = *runnable_[place];
    const std::size_t warps = priorities_.size() / blocks_.size();
    return priorities_[static_cast<std::size_t>(fiber.block) * warps +
                       static_cast<std::size_t>(fiber.warp())];
  };
  std::size_t place = dice_.roll(runnable_.size());
  for (std::uint64_t i = 1; i < candidates_; ++i) {
    const std::size_t other = dice_.roll(runnable_.size());
    if (priority(other) < priority(place)) place = other;
  }
  Fiber* const fiber = runnable_[place];
  runnable_[place] = runnable_.back();
  runnable_.pop_back();
  return fiber;
}

void Machine::fail(const std::string& words) {
  if (is_between_threads_) stop(words);
  stop(on_cpu::words("block ", blockIdx.x, ", thread ", running_->thread, ": ", words));
}

void Machine::stop(const std::string& words) {
  failure_ = words;
  setcontext(&main_);
  std::terminate();  // it does not return
}

void launch(const Launch& launch, const Schedule& schedule, const std::function<void()>& kernel) {
  const auto fits = [&] {
    return launch.cluster > 0 && launch.blocks.x % launch.cluster == 0 && launch.threads > 0 &&
           launch.threads % kWarpThreads == 0 && launch.threads <= 1024 &&
           launch.shared_bytes >= 0 && launch.shared_bytes <= static_cast<int>(kMostShared);
  };
  if (!fits()) throw std::invalid_argument("launch: the device would refuse this");
  gridDim = launch.blocks;
  blockDim = dim3(static_cast<unsigned>(launch.threads));
  std::vector<dim3> clusters;
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; x += launch.cluster) clusters.emplace_back(x, y, z);
    }
  }
  const Stacks stacks(static_cast<std::size_t>(launch.cluster * launch.threads));
  Dice dice(schedule.seed);
  while (!clusters.empty()) {
    std::swap(clusters[dice.roll(clusters.size())], clusters.back());
    const Schedule own{.seed = dice.roll(~std::uint64_t{0}), .lateness = schedule.lateness};
    Machine(launch, own, kernel, stacks, clusters.back()).run();
    clusters.pop_back();
  }
}

}  // namespace lockstep::kernels::on_cpu
