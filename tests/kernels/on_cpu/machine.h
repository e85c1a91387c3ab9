#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/on_cpu/block.h"
#include "tests/kernels/on_cpu/fiber.h"
#include "tests/kernels/on_cpu/launch.h"

namespace lockstep::kernels::on_cpu {

/// One cluster: its blocks, its threads, of which one runs at a time, and what the device does
/// meanwhile. It decides who is next.
class Machine {
 public:
  Machine(const Launch& launch, const Schedule& schedule, const std::function<void()>& kernel,
          const Stacks& stacks, dim3 first_block);

  /// Until all threads have ended. Throws Failure.
  void run();

  // Of the thread that runs now.
  Fiber& thread() { return *running_; }
  Block& block() { return *blocks_[static_cast<std::size_t>(running_->block)]; }

  std::size_t blocks() const { return blocks_.size(); }
  Block& block(std::size_t rank) { return *blocks_[rank]; }

  /// Lets others run until somebody wakes this thread.
  void wait(const Wait& wait);
  void wake(Fiber& fiber);
  /// Now and then lets others run: on the device, what comes after a signal may come much later.
  void pause();

  /// Before a wait ends what it waits for: until others have gone far ahead, so that it is late.
  void linger();
  /// Of all threads of the cluster.
  void sync_cluster();

  /// Something the device does on its own, now or some time later. Where it is not a load, who asks
  /// for it lets it happen before a wait for it ends.
  std::shared_ptr<Work> start(std::function<void()> does, bool is_load = false);
  bool is_early() const { return lateness_ == Lateness::early; }

  /// Something that is seen at the end of the kernel and not before.
  void at_end(std::function<void()> does) { at_end_.push_back(std::move(does)); }

  /// Ends it all, naming the thread.
  [[noreturn]] void fail(const std::string& words);

 private:
  [[noreturn]] void stop(const std::string& words);
  static void thread_main();
  void end_thread();
  Fiber* next();
  Fiber* take_runnable();
  void let_one_happen();
  void enter(Fiber& fiber);
  void end_cluster_barrier_if_complete();
  void check_end();

  std::function<void()> kernel_;
  Lateness lateness_;
  Dice dice_;
  std::uint64_t turns_per_work_;  // in the mean
  std::uint64_t candidates_;
  std::vector<std::uint64_t> priorities_;  // of warps
  dim3 first_block_;

  std::deque<Fiber> fibers_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Fiber*> runnable_, lingering_;
  std::vector<Fiber*> in_cluster_barrier_;
  Works under_way_;
  std::vector<std::function<void()>> at_end_;
  std::size_t ended_ = 0;
  Fiber* running_ = nullptr;
  ucontext_t main_;
  bool is_between_threads_ = false;  // something happens on its own
  std::string failure_;
};

/// The one that runs a kernel now: device code asks for it by no argument.
Machine& machine();
[[noreturn]] void fail(const std::string& words);

}  // namespace lockstep::kernels::on_cpu
