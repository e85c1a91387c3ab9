#include "comm/mpi.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "comm/mpi_backend.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_mpi(const MpiOptions& options) {
  const MpiThread& mpi = MpiThread::get();
  const int last = *std::ranges::max_element(options.global_ranks);
  const int rank = options.global_ranks.at(static_cast<std::size_t>(options.rank));
  if (last >= mpi.size() || rank != mpi.rank()) {
    throw InvalidArgument(concat("backend mpi: rank ", rank, " is rank ", mpi.rank(), " of ",
                                 mpi.size(), " for MPI; start all ranks with one mpirun"));
  }
  if (rank == 0 && options.group_name == "0" && std::getenv("LOCKSTEP_QUIET") == nullptr) {
    std::fprintf(stderr,
                 "lockstep: backend mpi: when a rank dies, mpirun ends the job; started again, it "
                 "goes on from its newest snapshot\n");
  }
  // 0 is that of the group in which ranks tell each other where they meet.
  const int number = 1 + parse_integer<int>(options.group_name).value_or(0);
  return c10::make_intrusive<MpiBackend>(MpiBackend::Spec{.rank = options.rank,
                                                          .global_ranks = options.global_ranks,
                                                          .number = number,
                                                          .timeout = options.timeout});
}

}  // namespace lockstep
