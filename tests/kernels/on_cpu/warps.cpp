#include "tests/kernels/on_cpu/warps.h"

#include <cstring>

#include "tests/kernels/on_cpu/cuda_words.h"
#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

constexpr unsigned kRow = 16;  // bytes of a matrix's eight values

struct Lane {
  unsigned address;
  unsigned* pairs;
  Fiber* fiber;
};

// Calls `visit` with every pair of a lane and where its row lies. Row i of matrix j is where lane
// 8 * j + i says.
template <class Visit>
void for_each_pair(const char* call, unsigned address, unsigned* pairs, const Visit& visit) {
  if (address % kRow != 0) {
    fail(words(call, " at shared address ", hex(address), ", which is no multiple of 16"));
  }
  Block& block = machine().block();
  Meeting& warp = block.warp(machine().thread().thread);
  Lane mine{address, pairs, &machine().thread()};
  if (!warp.arrive(call, lane(), &mine)) return;
  for (std::size_t i = 0; i < warp.members(); ++i) {
    const Lane& lane = warp.of<Lane>(i);
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      const unsigned row = warp.of<Lane>(matrix * 8 + i / 4).address;
      unsigned char* const at = block.at(row, kRow, call) + i % 4 * sizeof(unsigned);
      visit(lane.pairs[matrix], at, row, *lane.fiber);
    }
  }
  warp.dismiss();
}

}  // namespace

void load_matrices(unsigned address, unsigned (&pairs)[4]) {
  for_each_pair("load_matrices()", address, pairs,
                [](unsigned& pair, const unsigned char* at, unsigned, Fiber&) {
                  std::memcpy(&pair, at, sizeof(pair));
                });
}

void store_matrices(unsigned address, const unsigned (&pairs)[4]) {
  Block& block = machine().block();
  unsigned copies[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
  for_each_pair("store_matrices()", address, copies,
                [&](const unsigned& pair, unsigned char* at, unsigned row, Fiber& by) {
                  std::memcpy(at, &pair, sizeof(pair));
                  block.hide(row, by);
                });
}

int lane() {
  return machine().thread().thread % kWarpThreads;
}

void exchange(const char* call, unsigned mask, unsigned& bits, int from) {
  constexpr unsigned kAll = 0xffffffffu;
  if (mask != kAll) fail(words(call, " of a part of a warp, which is not emulated"));
  struct Brought {
    unsigned given;
    int from;
    unsigned* got;
  };
  Brought mine{bits, from, &bits};
  Meeting& warp = machine().block().warp(machine().thread().thread);
  if (!warp.arrive(call, lane(), &mine)) return;
  for (std::size_t i = 0; i < warp.members(); ++i) {
    const auto& lane = warp.of<Brought>(i);
    *lane.got = warp.of<Brought>(static_cast<std::size_t>(lane.from)).given;
  }
  warp.dismiss();
}

}  // namespace lockstep::kernels::on_cpu

void __syncwarp(unsigned mask) {
  unsigned nothing = 0;
  lockstep::kernels::on_cpu::exchange("__syncwarp()", mask, nothing, 0);
}
