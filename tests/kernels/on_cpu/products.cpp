#include "tests/kernels/on_cpu/products.h"

#include <array>
#include <cstring>
#include <memory>

#include "tests/kernels/on_cpu/cuda_words.h"
#include "tests/kernels/on_cpu/launch.h"
#include "tests/kernels/on_cpu/machine.h"
#include "tests/kernels/on_cpu/words.h"

namespace lockstep::kernels::on_cpu {
namespace {

constexpr int kRows = 64, kRowsOfWarp = 16, kTerms = 16, kMostColumns = 256;
constexpr int kUnitValues = kUnit / sizeof(Bf16);
constexpr unsigned kTileRow = 128;
constexpr int kRowValues = kTileRow / sizeof(Bf16);

float to_float(Bf16 bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}

// What a descriptor says: 14 bits each, in units of 16 bytes, and the swizzle of 128 bytes.
struct Tile {
  unsigned start, across, along;
};
Tile tile_of(std::uint64_t descriptor) {
  constexpr std::uint64_t kUnits = 0x3fff, kSwizzle128 = std::uint64_t{1} << 62;
  const std::uint64_t known = kUnits | kUnits << 16 | kUnits << 32 | kSwizzle128;
  if ((descriptor & ~known) != 0 || (descriptor & kSwizzle128) == 0) {
    fail(words("multiply(): descriptor ", hex(descriptor),
               " is not of a tile swizzled by 128 bytes"));
  }
  const auto bytes = [&](int bit) {
    return static_cast<unsigned>(descriptor >> bit & kUnits) * kUnit;
  };
  return {.start = bytes(0), .across = bytes(16), .along = bytes(32)};
}

// Calls `visit` with the address of every 16 bytes of an operand, and which values they are: of
// line `line` (the result's row for a, column for b), from term `term` on; transposed, of one term
// and from a line on. The swizzle is of the address, not of the place in the tile.
template <class Visit>
void for_each_unit(std::uint64_t descriptor, bool is_transposed, int lines, const Visit& visit) {
  const Tile tile = tile_of(descriptor);
  if (is_transposed) {
    for (int term = 0; term < kTerms; ++term) {
      for (int line = 0; line < lines; line += kUnitValues) {
        visit(Block::swizzled(tile.start + static_cast<unsigned>(line / kRowValues) * tile.across +
                              static_cast<unsigned>(term / 8) * tile.along +
                              static_cast<unsigned>(term % 8) * kTileRow +
                              static_cast<unsigned>(line % kRowValues / kUnitValues) * kUnit),
              line, term);
      }
    }
  } else {
    for (int line = 0; line < lines; ++line) {
      for (int term = 0; term < kTerms; term += kUnitValues) {
        visit(Block::swizzled(tile.start + static_cast<unsigned>(line / 8) * tile.along +
                              static_cast<unsigned>(line % 8) * kTileRow +
                              static_cast<unsigned>(term / kUnitValues) * kUnit),
              line, term);
      }
    }
  }
}

void check_operand(const Block& block, std::uint64_t descriptor, bool is_transposed, int lines) {
  for_each_unit(descriptor, is_transposed, lines, [&](unsigned address, int, int) {
    block.at(address, kUnit, "multiply()");
    block.check_visible(address, "multiply()");
  });
}

// A warp's quarter of a product: 16 rows.
struct Quarter {
  Product product;
  int first_row;
  std::array<float*, kWarpThreads> sums;
  std::array<std::array<unsigned, 4>, kWarpThreads> pairs;
};

// Where a warp has a value of its 16 rows: in groups of eight columns, four values each, the rows
// below 8 first.
struct Place {
  std::size_t lane;
  int value;
};
Place place_of(int row, int column) {
  return {.lane = static_cast<std::size_t>(row % 8 * 4 + column % 8 / 2),
          .value = column / 8 * 4 + row / 8 * 2 + column % 2};
}

using ValuesOfA = float[kRows][kTerms];
using ValuesOfB = float[kTerms][kMostColumns];

void read_pairs(const Quarter& quarter, ValuesOfA& a) {
  for (int row = 0; row < kRowsOfWarp; ++row) {
    for (int term = 0; term < kTerms; ++term) {
      const auto [lane, value] = place_of(row, term);
      const unsigned pair = quarter.pairs[lane][static_cast<std::size_t>(value / 2)];
      a[quarter.first_row + row][term] =
          to_float(static_cast<Bf16>(value % 2 == 0 ? pair : pair >> 16));
    }
  }
}

// Calls `put` with a line, a term and its value.
template <class Put>
void read_operand(const Block& block, std::uint64_t descriptor, bool is_transposed, int lines,
                  const Put& put) {
  for_each_unit(descriptor, is_transposed, lines, [&](unsigned address, int line, int term) {
    Bf16 values[kUnitValues];
    std::memcpy(values, block.at(address, kUnit, "multiply()"), kUnit);
    for (int i = 0; i < kUnitValues; ++i) {
      is_transposed ? put(line + i, term, to_float(values[i]))
                    : put(line, term + i, to_float(values[i]));
    }
  });
}

void compute(const Quarter& quarter, const Block& block) {
  const Product& product = quarter.product;
  ValuesOfA a;
  ValuesOfB b;
  if (product.pairs != nullptr) {
    read_pairs(quarter, a);
  } else {
    read_operand(block, product.a, product.transposed_a, kRows,
                 [&](int row, int term, float value) { a[row][term] = value; });
  }
  read_operand(block, product.b, product.transposed_b, product.columns,
               [&](int column, int term, float value) { b[term][column] = value; });
  for (int row = 0; row < kRowsOfWarp; ++row) {
    float sums[kMostColumns] = {};
    for (int term = 0; term < kTerms; ++term) {
      const float factor = a[quarter.first_row + row][term];
      for (int column = 0; column < product.columns; ++column) {
        sums[column] += factor * b[term][column];
      }
    }
    for (int column = 0; column < product.columns; ++column) {
      const auto [lane, value] = place_of(row, column);
      float& sum = quarter.sums[lane][value];
      sum = product.adds ? sum + sums[column] : sums[column];
    }
  }
}

// Calls `act` once, when all threads of the warp are here.
template <class Act>
void together(const char* call, const Product& product, const Act& act) {
  Block& block = machine().block();
  const int thread = machine().thread().thread;
  Meeting& warp = block.warp(thread);
  Product mine = product;
  if (!warp.arrive(call, thread % kWarpThreads, &mine)) return;
  act(block.group(thread), static_cast<std::size_t>(thread % kThreadsOfGroup / kWarpThreads), warp);
  warp.dismiss();
}

}  // namespace

void multiply(const Product& product) {
  together("multiply()", product, [&](Group& group, std::size_t warp, const Meeting& lanes) {
    auto quarter = std::make_shared<Quarter>();
    quarter->product = product;
    quarter->first_row = static_cast<int>(warp) * kRowsOfWarp;
    for (std::size_t i = 0; i < lanes.members(); ++i) {
      const auto& of_lane = lanes.of<Product>(i);
      if (!of_lane.is_like(product)) fail("threads of a warp ask for different products");
      quarter->sums[i] = of_lane.sums;
      for (std::size_t j = 0; product.pairs != nullptr && j < 4; ++j) {
        quarter->pairs[i][j] = of_lane.pairs[j];
      }
    }
    Block& block = machine().block();
    check_operand(block, product.b, product.transposed_b, product.columns);
    if (product.pairs == nullptr) check_operand(block, product.a, product.transposed_a, kRows);
    group.multiply(warp, product, [quarter, &block] { compute(*quarter, block); });
  });
}

void begin_products() {
  together("begin_products()", {},
           [](Group& group, std::size_t warp, const Meeting&) { group.begin_products(warp); });
}

void end_product_group() {
  together("end_product_group()", {},
           [](Group& group, std::size_t warp, const Meeting&) { group.end_products(warp); });
}

void wait_for_products(unsigned groups) {
  together("wait_for_products()", {},
           [groups](Group& group, std::size_t warp, const Meeting&) { group.wait(warp, groups); });
}

}  // namespace lockstep::kernels::on_cpu
