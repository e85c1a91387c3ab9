#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

class RecoverableLoop;
class World;

/// What can be captured and set: Optimizer, LRSchedule, GradScaler, Ema, MetricWatch, a class of
/// yours.
template <typename T>
concept Stateful = requires(const T& part, T& changed, const State& state) {
  { part.state() } -> std::convertible_to<State>;
  changed.load_state(state);
};

/// How a part of what lasts from step to step is captured and set. load_state() copies, and throws
/// before it changes anything if the state does not fit.
struct RecoverablePart {
  std::function<State()> state;
  std::function<void(const State&)> load_state;

  RecoverablePart() = default;
  RecoverablePart(std::function<State()> state_of, std::function<void(const State&)> load)
      : state(std::move(state_of)), load_state(std::move(load)) {}
  /// Refers to `part`. Implicit, so that a list reads {{"ema", ema}, {"scaler", scaler}}.
  template <Stateful T>
  requires(!std::same_as<std::remove_const_t<T>, RecoverablePart>) RecoverablePart(T& part)
      : state([&part] { return part.state(); }),
        load_state([&part](const State& loaded) { part.load_state(loaded); }) {}
};

/// A variable that JSON can hold: a number, a string, a std::vector or std::map of them.
template <typename T>
RecoverablePart recoverable_value(T& value) {
  return {[&value] {
            State state;
            state.values["value"] = value;
            return state;
          },
          [&value](const State& state) { state.values.at("value").get_to(value); }};
}

/// What a training loop has. Everything here is the same on every rank, and changes only when a
/// step is committed.
struct RecoverableState {
  std::shared_ptr<torch::nn::Module> module;           // its parameters and buffers
  RecoverablePart optimizer;                           // a lockstep::Optimizer&
  std::map<std::string, RecoverablePart> others = {};  // what else lasts, by names of your own
  std::int64_t first_step = 0;                         // above 0: the state is one that was saved
  std::optional<std::int64_t> steps = std::nullopt;    // unset: until a step calls stop()
  std::uint64_t seed = 0;                              // of the random numbers in steps
};

/// Logical ranks that a process stands for: as many as the world had processes when the loop began.
/// Each process has its own one, unless some were left out of the world (docs/recovery.md).
struct RecoverableSlots {
  int count = 1;  // of the whole job
  int first = 0;  // this process has [first, last)
  int last = 1;
};

/// A step under way.
class RecoverableStep {
 public:
  RecoverableStep(const RecoverableStep&) = delete;
  RecoverableStep& operator=(const RecoverableStep&) = delete;

  std::int64_t number() const { return number_; }

  /// Whose share of the step this process has to compute, for a loop that leaves no data out when
  /// there are fewer processes than at first.
  const RecoverableSlots& slots() const { return slots_; }

  /// After the last collective of the step, once: all ranks get rank 0's buffers, then `apply`
  /// changes what lasts. `apply` must not communicate. What it throws ends the run, because half a
  /// change cannot be taken back.
  void commit(const std::function<void()>& apply);

  /// Before commit(), on every rank in the same step: this one is the last.
  void stop();

 private:
  friend class RecoverableLoop;
  RecoverableStep(RecoverableLoop& loop, std::int64_t number, const RecoverableSlots& slots)
      : loop_(loop), number_(number), slots_(slots) {}

  RecoverableLoop& loop_;
  std::int64_t number_;
  RecoverableSlots slots_;
  bool stops_ = false;
};

namespace detail {
using StepFunction = std::function<void(RecoverableStep&)>;
std::int64_t run_recoverable(World& world, const RecoverableState& state,
                             const std::function<StepFunction(World&)>& make_step);
}  // namespace detail

/// Runs a training loop whose ranks can be killed: under `lockstep run` a rank that dies is
/// replaced, the new process takes over the state of the others, and the run goes on with the step
/// that was under way, as if nothing had happened (docs/recovery.md). Without such a launcher it
/// is a loop.
///
///     lockstep::recoverable(
///         world, {.module = model.ptr(), .optimizer = optimizer, .steps = 1000},
///         [&](lockstep::World& world) {
///           return [&, ddp = lockstep::DistributedDataParallel(world, model)](
///                      lockstep::RecoverableStep& step) mutable {
///             ddp.zero_grad();
///             loss_of(ddp, batch(step.number())).backward();
///             step.commit([&] { optimizer.step(); });
///           };
///         });
///
/// `make_step` makes what holds a process group, such as DistributedDataParallel, and returns the
/// function that does one step. It is called at the start and again each time the ranks have met
/// anew, on all ranks at once; what it made before is gone by then. It may use collectives, and
/// must not change the state.
///
/// A step may be done again, here or in another process, and must then give the same: its data
/// depends on its number and the rank alone, and nothing that lasts changes before commit(). The
/// numbers of torch's default generators depend on `seed`, the step and the rank. The module's
/// buffers (BatchNorm's statistics) are put back, and gradients dropped, when a step is cut short.
///
/// Where the launcher may leave dead ranks out (`--min-world`), there may be fewer ranks after a
/// recovery, and later more again: what the step makes of world.rank() and world.world_size() it
/// makes anew. Step::slots() says whose work this process then has to do.
///
/// What follows commit() in a step is missed by a rank that dies there, or that takes the state
/// after the step from another. What must not be missed stands at the beginning of the next step:
/// there the state is that after number() steps.
///
/// A process that replaces another (World::joins()) calls no collective between init() and this
/// function. No rank returns before all have committed the last step. Deaths after that are not
/// recovered, nor are those in a second call or a Trainer's fit() after it.
///
/// Returns the number of the step that would be next: the same on every rank.
///
/// Throws InvalidArgument for a state that lacks its module or optimizer, or is not the same on all
/// ranks at the start; for a step that is not committed exactly once, or that changes the state
/// before. Throws what a step threw, and PeerLost, Timeout or Aborted when ranks were lost and not
/// replaced; the world is then aborted.
template <typename MakeStep>
std::int64_t recoverable(World& world, const RecoverableState& state, MakeStep&& make_step) {
  static_assert(std::invocable<MakeStep&, World&>,
                "recoverable: the third argument takes the World and returns the step function");
  using Step = std::invoke_result_t<MakeStep&, World&>;
  static_assert(std::invocable<Step&, RecoverableStep&>,
                "recoverable: a step function takes a RecoverableStep&");
  return detail::run_recoverable(world, state, [&](World& formed) -> detail::StepFunction {
    // What holds a wrapper can be moved, not copied.
    auto step = std::make_shared<Step>(make_step(formed));
    return [step](RecoverableStep& current) { (*step)(current); };
  });
}

}  // namespace lockstep
