#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/callback.h"
#include "lockstep/world.h"

namespace program_ranks {

/// What InvalidArgument ends rank 0 with.
inline constexpr int kBadArguments = 2;

/// Another rank has failed and says why; a rank that catches it ends with kBadArguments.
struct SaidElsewhere {};

/// Runs `work`, which is one rank's part and returns its exit code: in this process where a
/// launcher started the ranks, or where there is to be one; otherwise in `ranks` processes of this
/// program. Throws InvalidArgument where the launcher started another number than --ranks says.
int run_on_ranks(std::int64_t ranks, const std::function<int()>& work);

/// The world of a launcher's ranks, or a world of one. Empty texts: as the library chooses.
lockstep::World make_world(const std::string& backend, const std::string& device);

/// rank0_first() for what may refuse the user's files: rank 0 says what is wrong, and is the first
/// to end, so that it is taken for the one that failed. The others throw SaidElsewhere.
void prepare_on_ranks(lockstep::World& world, const std::function<void()>& prepare);

/// The exit code of a run that has come to its end, on every rank. Where its last state could not
/// be saved rank 0 throws Error, and is the first to end, as above.
int end_run(lockstep::World& world, const lockstep::TrainResult& result);

}  // namespace program_ranks
