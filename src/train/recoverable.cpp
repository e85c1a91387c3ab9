#include "lockstep/recoverable.h"

#include <cstdio>
#include <limits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "comm/group_impl.h"
#include "comm/recovery.h"
#include "core/checksum.h"
#include "lockstep/error.h"
#include "lockstep/module_state.h"
#include "lockstep/random_scope.h"
#include "lockstep/step_transaction.h"
#include "lockstep/world.h"
#include "train/carry_over.h"
#include "train/slots.h"
#include "train/state_transfer.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr const char* kModule = "module";
constexpr const char* kOptimizer = "optimizer";
constexpr const char* kOther = "other ";  // and its name

void validate(const RecoverableState& state) {
  const auto refuse = [](const std::string& what) {
    throw InvalidArgument("recoverable: " + what);
  };
  if (!state.module) refuse("the module is null");
  const auto check_part = [&](const std::string& name, const RecoverablePart& part) {
    if (!part.state || !part.load_state) {
      refuse(concat(name, " has no function that captures or sets its state"));
    }
  };
  check_part(kOptimizer, state.optimizer);
  for (const auto& [name, part] : state.others) check_part("'" + name + "'", part);
  if (state.first_step < 0) refuse(concat("first_step is ", state.first_step));
  if (state.steps.value_or(0) < 0) refuse(concat("steps is ", *state.steps));
}

const State& part_of(const Snapshot& snapshot, const std::string& name) {
  const auto found = snapshot.parts.find(name);
  if (found == snapshot.parts.end()) {
    throw InvalidArgument(
        concat("recoverable: this process replaces another, but the others' "
               "state has no ",
               name, "; all ranks must describe the same state"));
  }
  return found->second;
}

// Of each part, so that one that differs can be named.
json checksums_of(Snapshot snapshot) {
  snapshot.parts[kOptimizer].values = json::object();  // a schedule may set the rate at any time
  json sums = json::object();
  for (auto& [name, part] : snapshot.parts) {
    Snapshot one;
    one.parts[name] = std::move(part);
    sums[name] = checksum_text(state_checksum(one));
  }
  return sums;
}

[[noreturn]] void refuse(std::int64_t step, const std::string& what) {
  throw InvalidArgument(concat("recoverable: step ", step, ": ", what));
}

/// The first name under which two descriptions differ.
std::optional<std::string> difference(const json& one, const json& other) {
  for (const auto& [name, value] : one.items()) {
    if (!other.contains(name) || other.at(name) != value) return name;
  }
  if (one.size() != other.size()) return "list of parts";
  return std::nullopt;
}

}  // namespace

/// One run of recoverable() on one rank.
class RecoverableLoop {
 public:
  RecoverableLoop(World& world, const RecoverableState& state,
                  const std::function<detail::StepFunction(World&)>& make_step)
      : world_(world),
        state_(state),
        make_step_(make_step),
        slots_(world.world_size()),
        next_(state.first_step) {
    validate(state_);
  }

  std::int64_t run();
  void commit(RecoverableStep& step, const std::function<void()>& apply);
  void stop(RecoverableStep& step) const;

 private:
  void begin();
  void form();
  void tell_of_absence() const;
  SlotShare share() const { return SlotShare::of(slots_, world_.rank(), world_.world_size()); }
  void proceed();
  void one_step();
  bool others_were_lost();
  void carry_over(bool formed);
  void agree_on_state();
  Snapshot give_up_state(const StateOffer& offer);
  void take(const HandedState& handed);
  Snapshot snapshot() const;
  json unchanging() const;
  void verify(int source, const std::string& when) const;
  void await_collectives();
  void drop_gradients();

  World& world_;
  const RecoverableState& state_;
  const std::function<detail::StepFunction(World&)>& make_step_;

  std::unique_ptr<StepTransactions> transactions_;
  detail::StepFunction step_;
  StepTransactions::Step* transaction_ = nullptr;  // of the step under way, until it is committed

  int slots_;             // processes that the world had at first
  std::int64_t next_;     // the step to be done: all before it are committed
  bool stopped_ = false;  // by a step
  bool has_state_ = false;
  bool recovers_ = false;
  bool half_changed_ = false;  // a commit has begun and not ended
  bool ended_ = false;
  bool checked_ = false;  // that a step changes nothing that lasts before it is committed
  json before_step_;      // until then: what must not change
};

Snapshot RecoverableLoop::snapshot() const {
  Snapshot snapshot{.step = next_, .epoch = world_.epoch(), .slots = slots_, .seed = state_.seed};
  snapshot.parts[kModule] = module_state(*state_.module);
  snapshot.parts[kOptimizer] = state_.optimizer.state();
  for (const auto& [name, part] : state_.others) snapshot.parts[kOther + name] = part.state();
  return snapshot;
}

// All that a step leaves alone until it is committed: buffers are put back.
json RecoverableLoop::unchanging() const {
  Snapshot all = snapshot();
  for (const auto& buffer : state_.module->named_buffers()) {
    all.parts[kModule].tensors.erase(buffer.key());
  }
  return checksums_of(std::move(all));
}

void RecoverableLoop::verify(int source, const std::string& when) const {
  json mine = checksums_of(snapshot());
  mine["number of steps"] = {next_, stopped_, state_.steps ? json(*state_.steps) : json()};
  const auto all = world_.group().all_gather_json(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto different = difference(all[static_cast<std::size_t>(source)], all[rank]);
    if (!different) continue;
    const std::string what = concat("recoverable: ", when, " the ", *different, " of rank ", rank,
                                    " is not that of rank ", source);
    if (!has_state_) throw InvalidArgument(what + "; all ranks must have the same");
    throw Error(concat(what, " (step ", next_, ")"));
  }
}

// In the world as it is now.
void RecoverableLoop::form() {
  step_ = make_step_(world_);
  transactions_ = std::make_unique<StepTransactions>(world_.group(), state_.module);
}

void RecoverableLoop::begin() {
  if (world_.joins()) {
    recovers_ = true;
    return carry_over(/*formed=*/true);
  }
  form();
  verify(0, "at the start");
  has_state_ = true;
  if (has_group_of_its_own(*state_.module, world_.group())) {
    if (can_recover(world_) && world_.rank() == 0) {
      std::fputs(
          "lockstep: a rank that dies cannot be replaced in place: a SyncBatchNorm communicates in "
          "a group of its own\n",
          stderr);
    }
    return;
  }
  recovers_ = true;
  commit_to_recovery(world_, next_);
}

std::int64_t RecoverableLoop::run() {
  begin();
  while (true) {
    try {
      proceed();
      return next_;
    } catch (const InvalidArgument&) {
      throw;
    } catch (const std::exception&) {
      if (!others_were_lost()) throw;
    }
    carry_over(/*formed=*/false);
  }
}

void RecoverableLoop::proceed() {
  constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();
  while (!stopped_ && next_ < state_.steps.value_or(kNoEnd)) one_step();
  // No rank leaves before all have done their last step, or the slow ones would miss a peer.
  world_.barrier();
  ended_ = true;
  end_recovery(world_, next_);
}

void RecoverableLoop::one_step() {
  world_.report(next_, "step");  // whatever the program puts into it
  const std::int64_t number = next_;
  if (!checked_) before_step_ = unchanging();
  auto transaction = transactions_->begin();
  transaction_ = &transaction;
  const SlotShare mine = share();
  RecoverableStep step(*this, number, {.count = slots_, .first = mine.first, .last = mine.last});
  {
    const RandomScope random({.seed = state_.seed, .step = number, .slot = mine.first},
                             world_.device());
    step_(step);
  }
  if (next_ == number) refuse(number, "it was not committed; a step calls commit() once");
}

void RecoverableStep::commit(const std::function<void()>& apply) {
  loop_.commit(*this, apply);
}

void RecoverableStep::stop() {
  loop_.stop(*this);
}

void RecoverableLoop::stop(RecoverableStep& step) const {
  if (next_ != step.number())
    refuse(step.number(), "stop() was called after commit(); it comes before");
  step.stops_ = true;
}

void RecoverableLoop::commit(RecoverableStep& step, const std::function<void()>& apply) {
  if (next_ != step.number())
    refuse(step.number(), "commit() was called twice; a step calls it once");
  // Later steps do what the first one did.
  if (!checked_) {
    if (const auto changed = difference(before_step_, unchanging())) {
      refuse(step.number(),
             concat("the ", *changed,
                    " was changed before commit(); a step that is cut short could not be done "
                    "again, so change it in the function that commit() is given"));
    }
    checked_ = true;
  }
  await_collectives();
  transaction_->commit([&] {
    half_changed_ = true;
    apply();
    half_changed_ = false;
    ++next_;
    stopped_ = step.stops_;
  });
}

// On the CPU they have ended; elsewhere they have only been put in line, and an abort would leave
// numbers that nobody has computed.
void RecoverableLoop::await_collectives() {
  const c10::Device device = world_.device();
  if (device.is_cpu() || !can_recover(world_)) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeStream(guard.getStream(device));
  world_.group().impl()->guard->check_usable("commit");
}

bool RecoverableLoop::others_were_lost() {
  if (ended_ || !recovers_ || half_changed_) return false;
  return ranks_were_lost(world_, [this] { return world_.stop_requested(); });
}

// Those of a step that was committed may still be there.
void RecoverableLoop::drop_gradients() {
  for (at::Tensor& parameter : state_.module->parameters()) {
    parameter.mutable_grad() = at::Tensor();
  }
}

// Until all ranks hold the same state again, whatever happens meanwhile.
void RecoverableLoop::carry_over(bool formed) {
  world_.report(next_, "recover");
  while (true) {
    try {
      if (!formed) {
        world_.abort();  // before what it holds on to goes
        transactions_.reset();
        step_ = nullptr;
        drop_gradients();
        reform(world_);
      }
      return agree_on_state();
    } catch (const InvalidArgument&) {
      throw;
    } catch (const std::exception&) {
      if (!others_were_lost()) throw;
    }
    formed = false;
  }
}

void RecoverableLoop::agree_on_state() {
  ProcessGroup& group = world_.group();
  const Standing standing =
      compare_commits(group, has_state_ ? std::optional(next_) : std::nullopt);
  HandedState handed =
      hand_over(group, standing,
                {.offer =
                     [this] {
                       return HandedState{
                           .state = snapshot(),
                           .values = {{"next", next_}, {"stopped", stopped_}, {"slots", slots_}}};
                     },
                 .give_up = [this](const StateOffer& offer) { return give_up_state(offer); }});
  if (standing.takes(group.rank())) take(handed);
  verify(standing.source, "after the recovery");
  join_group(*state_.module, group);
  form();
  has_state_ = true;
  tell_of_absence();
  commit_to_recovery(world_, next_);
}

// The weights; what else there is may be held in any way, and is taken at the end.
Snapshot RecoverableLoop::give_up_state(const StateOffer& offer) {
  if (has_state_ && offer.fits_in_memory()) return {};
  has_state_ = false;
  Snapshot own;
  own.parts[kModule] = module_state(*state_.module);
  return own;
}

void RecoverableLoop::tell_of_absence() const {
  if (world_.world_size() == slots_ || world_.rank() != 0) return;
  std::fprintf(stderr,
               "lockstep: %d of %d processes go on: averages are over those, and the bits differ "
               "from those of an undisturbed run\n",
               world_.world_size(), slots_);
}

void RecoverableLoop::take(const HandedState& handed) {
  const Snapshot& state = handed.state;
  if (state.seed != state_.seed) {
    throw InvalidArgument(concat("recoverable: this process replaces another, but its seed is ",
                                 state_.seed, ", there ", state.seed));
  }
  load_module_state(*state_.module, part_of(state, kModule));
  state_.optimizer.load_state(part_of(state, kOptimizer));
  for (const auto& [name, part] : state_.others) part.load_state(part_of(state, kOther + name));
  next_ = handed.values.at("next");
  stopped_ = handed.values.at("stopped");
  slots_ = handed.values.at("slots");
}

std::int64_t detail::run_recoverable(World& world, const RecoverableState& state,
                                     const std::function<StepFunction(World&)>& make_step) {
  RecoverableLoop loop(world, state, make_step);
  try {
    return loop.run();
  } catch (...) {
    world.abort();  // the others may wait for this rank in a collective
    throw;
  }
}

}  // namespace lockstep
