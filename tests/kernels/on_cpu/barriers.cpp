#include "tests/kernels/on_cpu/barriers.h"

#include <cstring>

#include "tests/kernels/on_cpu/cuda_words.h"
#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

// Lies where a barrier is: who writes over it is found out.
constexpr std::uint64_t kMark = 0xba441e4000000000u;

NamedBarrier& arrived_at(const char* call, unsigned number, unsigned threads) {
  if (number > 15 || threads == 0 || threads % kWarpThreads != 0 || threads > blockDim.x) {
    fail(words(call, " number ", number, " of ", threads, " threads"));
  }
  NamedBarrier& barrier = machine().block().named_barrier(number);
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) {
    fail(words(call, " number ", number, " of ", threads, " threads, and of ", barrier.threads,
               " by others"));
  }
  if (barrier.who[threadIdx.x]) {
    fail(words(call, " number ", number, " for the second time before the others came"));
  }
  barrier.who.set(threadIdx.x);
  ++barrier.arrived;
  return barrier;
}

bool end_if_complete(NamedBarrier& barrier) {
  if (barrier.arrived < barrier.threads) return false;
  for (Fiber* fiber : barrier.waiting) machine().wake(*fiber);
  barrier = {};
  return true;
}

void end_phase_if_complete(BarrierState& barrier, unsigned address) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  if (barrier.loading > 0) {
    fail(words("phase ", barrier.phase, " of the barrier at shared address ", hex(address),
               " ends while ", barrier.loading,
               " bytes are on their way: fewer bytes were expected than loaded"));
  }
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
  for (Fiber* fiber : barrier.waiting) machine().wake(*fiber);
  barrier.waiting.clear();
}

void check_bytes(const BarrierState& barrier, unsigned address) {
  constexpr std::int64_t kMost = (1 << 20) - 1;
  if (barrier.missing == 0 && barrier.bytes < 0) {
    fail(words("the barrier at shared address ", hex(address), " was told of ", -barrier.bytes,
               " bytes more than phase ", barrier.phase, " expects"));
  }
  if (barrier.bytes > kMost || barrier.bytes < -kMost) {
    fail(words("the barrier at shared address ", hex(address), " cannot count ", barrier.bytes,
               " bytes"));
  }
}

}  // namespace

void sync_threads(const char* call, unsigned number, unsigned threads) {
  NamedBarrier& barrier = arrived_at(call, number, threads);
  if (end_if_complete(barrier)) return machine().pause();
  barrier.waiting.push_back(&machine().thread());
  machine().wait({Wait::Kind::named_barrier, call, number, threads});
}

void arrive_threads(unsigned number, unsigned threads) {
  end_if_complete(arrived_at("arrive_threads()", number, threads));
  machine().pause();
}

void sync_cluster() {
  machine().sync_cluster();
}

void init_barrier(std::uint64_t& state, int arrivals) {
  Block& block = machine().block();
  const unsigned address = block.address_of(&state);
  block.at(address, sizeof(state), "Barrier::init()");
  if (address % sizeof(state) != 0 || arrivals < 1) {
    fail(words("Barrier::init() at shared address ", hex(address), " for ", arrivals, " arrivals"));
  }
  BarrierState& barrier = block.barriers()[address];
  if (!barrier.waiting.empty() || barrier.loading != 0) {
    fail(words("Barrier::init() at shared address ", hex(address),
               ", where threads wait or to which loads are on their way"));
  }
  barrier = {.arrivals = arrivals, .missing = arrivals};
  state = kMark | address;
}

BarrierState& barrier_at(Block& block, unsigned address, const char* call) {
  std::uint64_t mark;
  std::memcpy(&mark, block.at(address, sizeof(mark), call), sizeof(mark));
  const auto found = block.barriers().find(address);
  if (found == block.barriers().end() || mark != (kMark | address)) {
    fail(words(call, " at shared address ", hex(address), " of block ", block.rank(),
               " of the cluster, where no barrier was initialized, or it was overwritten"));
  }
  return found->second;
}

void arrive(std::uint64_t& state, unsigned rank, int bytes) {
  const unsigned address = machine().block().address_of(&state);
  if (rank >= machine().blocks()) fail(words("Barrier::arrive_at(", rank, "): no such block"));
  Block& block = machine().block(rank);
  BarrierState& barrier = barrier_at(block, address, "Barrier::arrive()");
  const bool is_remote = &block != &machine().block();
  if (is_remote && block.has_ended()) fail("Barrier::arrive_at() a block that has ended");
  if (is_remote && !barrier.is_published) {
    fail("Barrier::arrive_at() another block's barrier before publish_barriers()");
  }
  if (barrier.missing == 0) {
    fail(words("Barrier::arrive() at shared address ", hex(address), ": phase ", barrier.phase,
               " has had its ", barrier.arrivals, " arrivals and still lacks ", barrier.bytes,
               " bytes"));
  }
  barrier.bytes += bytes;
  --barrier.missing;
  check_bytes(barrier, address);
  end_phase_if_complete(barrier, address);
  machine().pause();
}

void expect_load(Block& block, unsigned address, unsigned bytes, const char* call) {
  BarrierState& barrier = barrier_at(block, address, call);
  if (block.has_ended()) fail(words(call, " into a block that has ended"));
  if (!barrier.is_published) fail(words(call, " before publish_barriers()"));
  barrier.loading += bytes;
}

void complete_load(Block& block, unsigned address, unsigned bytes, const char* call) {
  BarrierState& barrier = barrier_at(block, address, call);
  if (block.has_ended()) fail(words(call, " into a block that has ended before"));
  barrier.loading -= bytes;
  barrier.bytes -= bytes;
  check_bytes(barrier, address);
  end_phase_if_complete(barrier, address);
}

void wait(std::uint64_t& state, unsigned parity) {
  const char* const call = "Barrier::wait()";
  const unsigned address = machine().block().address_of(&state);
  BarrierState& barrier = barrier_at(machine().block(), address, call);
  if (parity > 1) fail(words(call, " of parity ", parity));
  if (barrier.phase % 2 != parity) return machine().pause();
  const unsigned phase = barrier.phase;
  barrier.waiting.push_back(&machine().thread());
  machine().wait({Wait::Kind::barrier, call, address, parity});
  // The device's threads look at the barrier again and again, and would not see this phase's end.
  if (barrier.phase != phase + 1) {
    fail(words(call, " at shared address ", hex(address), ": phase ", phase,
               " ended, and so did the next before this thread saw it"));
  }
}

void publish_barriers() {
  for (auto& [address, barrier] : machine().block().barriers()) barrier.is_published = true;
}

}  // namespace lockstep::kernels::on_cpu

void __syncthreads() {
  lockstep::kernels::on_cpu::sync_threads("__syncthreads()", 0, blockDim.x);
}
