#include "tests/kernels/on_cpu/copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/kernels/on_cpu/barriers.h"
#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

constexpr int kTileColumns = 64;
constexpr unsigned kTileRow = kTileColumns * sizeof(Bf16);
constexpr unsigned kSwizzlePeriod = 8 * kTileRow;
constexpr int kUnitValues = kUnit / sizeof(Bf16);
constexpr std::uint64_t kMapMark = 0x6d61747269786573u;

// What a CUtensorMap of map_of() holds; the driver's own looks otherwise.
struct Matrix {
  std::uint64_t mark;
  Bf16* values;
  std::int64_t rows, columns, row_stride;
  int tile_rows;

  unsigned tile_bytes() const { return static_cast<unsigned>(tile_rows) * kTileRow; }
};
static_assert(sizeof(Matrix) <= sizeof(CUtensorMap));

Matrix matrix_of(const CUtensorMap& map) {
  Matrix matrix;
  std::memcpy(&matrix, &map, sizeof(matrix));
  if (matrix.mark != kMapMark) fail("a copy of a matrix that map_of() did not describe");
  return matrix;
}

// Calls `visit` with the matrix's row, its column and the address in shared memory of every 16
// bytes of a tile.
template <class Visit>
void for_each_unit(const Matrix& matrix, int column, int row, unsigned address,
                   const Visit& visit) {
  for (int i = 0; i < matrix.tile_rows; ++i) {
    for (int j = 0; j < kTileColumns; j += kUnitValues) {
      visit(std::int64_t{row} + i, std::int64_t{column} + j,
            Block::swizzled(address + static_cast<unsigned>(i) * kTileRow +
                            static_cast<unsigned>(j) * static_cast<unsigned>(sizeof(Bf16))));
    }
  }
}

void check_tile(unsigned address, const char* call) {
  if (address % kSwizzlePeriod != 0) {
    fail(words(call, " of a tile at shared address ", hex(address), ", which is no multiple of ",
               kSwizzlePeriod));
  }
}

void land(Block& block, const Matrix& matrix, int column, int row, unsigned address) {
  for_each_unit(matrix, column, row, address, [&](auto from_row, auto from_column, unsigned to) {
    Bf16 values[kUnitValues] = {};
    for (int i = 0; i < kUnitValues; ++i) {
      const std::int64_t at = from_column + i;
      if (from_row >= 0 && from_row < matrix.rows && at >= 0 && at < matrix.columns) {
        values[i] = matrix.values[from_row * matrix.row_stride + at];
      }
    }
    std::memcpy(block.at(to, kUnit, "load_tile()"), values, kUnit);
  });
}

// Of a tile as it is in shared memory now. It reaches the matrix at any time until the kernel ends.
void read_tile(Block& block, const Matrix& matrix, int column, int row, unsigned address) {
  std::vector<std::pair<Bf16*, Bf16>> written;
  for_each_unit(matrix, column, row, address, [&](auto to_row, auto to_column, unsigned from) {
    Bf16 values[kUnitValues];
    std::memcpy(values, block.at(from, kUnit, "store_tile()"), kUnit);
    for (int i = 0; i < kUnitValues; ++i) {
      const std::int64_t at = to_column + i;
      if (to_row >= 0 && to_row < matrix.rows && at >= 0 && at < matrix.columns) {
        written.emplace_back(matrix.values + to_row * matrix.row_stride + at, values[i]);
      }
    }
  });
  const auto write = [written = std::move(written)] {
    for (const auto& [to, value] : written) *to = value;
  };
  machine().is_early() ? write() : machine().at_end(write);
}

// From its start on, a copy may have written anything to where it goes.
template <class Land>
void start_load(Block& block, unsigned address, unsigned bytes, unsigned barrier, const char* call,
                Land land) {
  unsigned char* const to = block.at(address, bytes, call);
  expect_load(block, barrier, bytes, call);
  for (unsigned i = 0; i < bytes; i += kUnit) block.check_visible(address + i, call);
  if (!machine().is_early()) std::memset(to, kNothing, bytes);
  machine().start(
      [&block, barrier, bytes, call, land] {
        land();
        complete_load(block, barrier, bytes, call);
      },
      /*is_load=*/true);
}

}  // namespace

void load_tile(unsigned blocks, void* to, const CUtensorMap& from, int column, int row,
               const std::uint64_t& barrier) {
  const char* const call = "load_tile()";
  const Matrix matrix = matrix_of(from);
  const unsigned address = machine().block().address_of(to);
  const unsigned barrier_address = machine().block().address_of(&barrier);
  check_tile(address, call);
  if (blocks == 0 || blocks >> machine().blocks() != 0) {
    fail(words(call, " to blocks ", hex(blocks), " of a cluster of ", machine().blocks()));
  }
  for (std::size_t rank = 0; rank < machine().blocks(); ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    Block& block = machine().block(rank);
    start_load(block, address, matrix.tile_bytes(), barrier_address, call,
               [=, &block] { land(block, matrix, column, row, address); });
  }
  machine().pause();
}

void load_bytes(void* to, const void* from, int bytes, const std::uint64_t& barrier) {
  const char* const call = "load_bytes()";
  Block& block = machine().block();
  const unsigned address = block.address_of(to);
  if (bytes <= 0 || bytes % 16 != 0 || address % 16 != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    fail(words(call, " of ", bytes, " bytes from ", from, " to shared address ", hex(address),
               ": all must be multiples of 16"));
  }
  const auto count = static_cast<unsigned>(bytes);
  start_load(block, address, count, block.address_of(&barrier), call,
             [=] { std::memcpy(to, from, count); });
  machine().pause();
}

void store_tile(const CUtensorMap& to, int column, int row, const void* from) {
  const char* const call = "store_tile()";
  Block& block = machine().block();
  const Matrix matrix = matrix_of(to);
  const unsigned address = block.address_of(from);
  check_tile(address, call);
  block.at(address, matrix.tile_bytes(), call);
  for (unsigned i = 0; i < matrix.tile_bytes(); i += kUnit) block.check_visible(address + i, call);
  machine().thread().open_stores.push_back(
      machine().start([=, &block] { read_tile(block, matrix, column, row, address); }));
  machine().pause();
}

void end_store_group() {
  Fiber& self = machine().thread();
  self.stores.push_back(std::exchange(self.open_stores, {}));
  machine().pause();
}

void wait_for_reads(unsigned groups) {
  auto& stores = machine().thread().stores;
  if (stores.size() <= groups) return;
  machine().linger();
  const auto covered = stores.end() - groups;
  for (auto group = stores.begin(); group != covered; ++group) {
    for (const auto& work : *group) work->happen();
  }
  stores.erase(stores.begin(), covered);
}

void publish_to_copies() {
  machine().block().show_writes(machine().thread());
}

CUtensorMap map_of(const Bf16* matrix, std::int64_t rows, std::int64_t columns,
                   std::int64_t row_stride, int tile_rows) {
  constexpr int kMostRows = 256;
  if (rows < 1 || columns < 1 || row_stride < columns || row_stride % kUnitValues != 0 ||
      tile_rows < 1 || tile_rows > kMostRows ||
      reinterpret_cast<std::uintptr_t>(matrix) % kUnit != 0) {
    throw std::invalid_argument("map_of: the driver would refuse this matrix");
  }
  const Matrix held{kMapMark, const_cast<Bf16*>(matrix), rows, columns, row_stride, tile_rows};
  CUtensorMap map = {};
  std::memcpy(static_cast<void*>(&map), &held, sizeof(held));
  return map;
}

}  // namespace lockstep::kernels::on_cpu
