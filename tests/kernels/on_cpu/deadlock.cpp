#include "tests/kernels/on_cpu/deadlock.h"

#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

std::string words_of(const Fiber& fiber, Block& block) {
  const Wait& wait = fiber.wait;
  if (fiber.ended) return "ended";
  switch (wait.kind) {
    case Wait::Kind::barrier: {
      const BarrierState& barrier = block.barriers().at(wait.place);
      return words(wait.call, " of parity ", wait.detail, " at shared address ", hex(wait.place),
                   ", whose phase ", barrier.phase, " lacks ", barrier.missing, " of ",
                   barrier.arrivals, " arrivals and ", barrier.bytes, " bytes");
    }
    case Wait::Kind::named_barrier:
      return words(wait.call, " number ", wait.place, ", where ",
                   block.named_barrier(wait.place).arrived, " of ", wait.detail, " threads are");
    case Wait::Kind::cluster:
    case Wait::Kind::collective:
      return wait.call;
    case Wait::Kind::nothing:
      break;
  }
  return "nothing";
}

}  // namespace

std::string deadlock_report(const std::deque<Fiber>& fibers,
                            const std::vector<std::unique_ptr<Block>>& blocks) {
  std::string report = "deadlock: no thread can go on";
  // Neighbours that wait for the same thing share a line, within their warp.
  for (std::size_t i = 0; i < fibers.size();) {
    const Fiber& first = fibers[i];
    std::size_t end = i + 1;
    while (end < fibers.size() && fibers[end].block == first.block &&
           fibers[end].warp() == first.warp() && fibers[end].wait == first.wait &&
           fibers[end].ended == first.ended) {
      ++end;
    }
    report += words("\n  block ", first.block, " of the cluster, warp ", first.warp(), ", threads ",
                    first.thread, " to ", fibers[end - 1].thread, ": ",
                    words_of(first, *blocks[static_cast<std::size_t>(first.block)]));
    i = end;
  }
  return report;
}

}  // namespace lockstep::kernels::on_cpu
