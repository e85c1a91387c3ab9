#include "program_ranks/program_ranks.h"

#include <cstdlib>

#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/rank0_first.h"
#include "lockstep/spawn.h"
#include "lockstep/store.h"

namespace program_ranks {

using lockstep::concat;

namespace {

void await_end_of_rank0(lockstep::World& world) {
  try {
    world.barrier();
  } catch (const lockstep::Error&) {  // it has gone
  }
}

}  // namespace

int run_on_ranks(std::int64_t wanted, const std::function<int()>& work) {
  const int ranks = static_cast<int>(wanted);
  const bool spawned = std::getenv("LOCKSTEP_SPAWN") != nullptr;
  const auto launched = lockstep::detect_environment(lockstep::Environment::of_process());
  if (launched && !spawned && ranks != 1 && ranks != launched->world_size) {
    throw lockstep::InvalidArgument(concat("--ranks is ", ranks, ", but the launcher started ",
                                           launched->world_size, "; leave it out"));
  }
  if (ranks == 1 || (launched && !spawned)) return work();
  try {
    lockstep::spawn(
        [&](int) {
          const int code = work();
          if (code != 0) std::exit(code);
        },
        ranks);
  } catch (const lockstep::SpawnFailed& failed) {
    if (failed.exit_code() == 0) throw;  // a signal: the rank has said nothing itself
    return failed.exit_code();
  }
  return 0;
}

lockstep::World make_world(const std::string& backend, const std::string& device) {
  lockstep::InitOptions init{.backend = backend, .device = device};
  const auto launched = lockstep::detect_environment(lockstep::Environment::of_process());
  if (!launched) {  // a process alone needs no launcher
    init.store = lockstep::Store::tcp({.serve = true});
    init.rank = 0;
    init.world_size = 1;
  }
  return lockstep::init(init);
}

void prepare_on_ranks(lockstep::World& world, const std::function<void()>& prepare) {
  try {
    lockstep::rank0_first(world, prepare);
    return;
  } catch (const lockstep::RemoteError&) {
  }
  await_end_of_rank0(world);
  throw SaidElsewhere();
}

int end_run(lockstep::World& world, const lockstep::TrainResult& result) {
  if (result.saved) return result.exit_code();
  if (world.rank() == 0) {
    throw lockstep::Error(
        concat("step ", result.step, ", the last of this run, could not be saved"));
  }
  await_end_of_rank0(world);
  return result.exit_code();
}

}  // namespace program_ranks
