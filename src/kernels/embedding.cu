#include "kernels/embedding.h"

#include <cub/device/device_radix_sort.cuh>

#include "kernels/device.cuh"

namespace lockstep::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRowsAtOnce = 8;
constexpr int kChunk = 32;  // rows

__global__ void forward_kernel(const std::int64_t* ids, const Bf16* tokens, const Bf16* positions,
                               Bf16* out, EmbeddingShape shape) {
  const int packs = shape.columns / kPack;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = at / packs;
  if (row >= static_cast<std::int64_t>(shape.batch) * shape.length) return;
  const int column = static_cast<int>(at % packs) * kPack;
  float token[kPack], position[kPack];
  unpack(load(tokens + ids[row] * shape.columns + column), token);
  unpack(load(positions + row % shape.length * shape.columns + column), position);
#pragma unroll
  for (int j = 0; j < kPack; ++j) token[j] += position[j];
  store(out + row * shape.columns + column, pack(token));
}

__global__ void positions_kernel(const Bf16* dout, float* dpositions, EmbeddingShape shape) {
  const int packs = shape.columns / kPack;
  const int at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= shape.length * packs) return;
  const std::int64_t batch_stride = static_cast<std::int64_t>(shape.length) * shape.columns;
  const Bf16* first = dout + static_cast<std::int64_t>(at) * kPack;
  float sums[kPack] = {};
#pragma unroll 8
  for (int b = 0; b < shape.batch; ++b) {
    float values[kPack];
    unpack(load(first + b * batch_stride), values);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sums[j] += values[j];
  }
  store_floats(dpositions + static_cast<std::int64_t>(at) * kPack, sums);
}

__global__ void number_kernel(const std::int64_t* ids, int* keys, int* rows, int count) {
  const int at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= count) return;
  keys[at] = static_cast<int>(ids[at]);
  rows[at] = at;
}

// A token's rows are neighbours once sorted, and may be thousands, so they are added in two steps.
// A warp takes kChunk sorted rows and a part of the columns: tokens whose rows all lie in the chunk
// are done; of the first and the last one, which may go on in the chunks beside, it leaves the
// sums. Then the chunk in which a token begins adds those of the chunks that follow.
struct Chunks {
  const int* keys;
  const int* rows;
  float* edges;  // [chunk][2][columns]: the sums of its first and its last token
  int count;     // of rows
  int columns;
};

__device__ int end_of(const Chunks& chunks, int chunk) {
  return min((chunk + 1) * kChunk, chunks.count);
}

__device__ void add_to(float* target, const float (&sums)[kPack]) {
  float total[kPack];
  load_floats(target, total);
#pragma unroll
  for (int j = 0; j < kPack; ++j) total[j] += sums[j];
  store_floats(target, total);
}

__global__ void chunks_kernel(Chunks chunks, const Bf16* dout, float* dtokens) {
  const int lane = threadIdx.x % kWarp;
  const int chunk = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int begin = chunk * kChunk;
  if (begin >= chunks.count) return;
  const int end = end_of(chunks, chunk);
  const int column = (blockIdx.y * kWarp + lane) * kPack;
  if (column >= chunks.columns) return;
  const int first_token = chunks.keys[begin];
  const int last_token = chunks.keys[end - 1];
  const bool open_before = begin > 0 && chunks.keys[begin - 1] == first_token;
  const bool open_after = end < chunks.count && chunks.keys[end] == last_token;
  float* edges = chunks.edges + static_cast<std::int64_t>(chunk) * 2 * chunks.columns + column;

  float sums[kPack] = {};
  int token = first_token;
  const auto leave = [&] {
    const bool is_first = token == first_token;
    const bool is_last = token == last_token;
    if (is_first && open_before) {
      store_floats(edges, sums);
    } else if (is_last && open_after) {
      store_floats(edges + chunks.columns, sums);
    } else {
      add_to(dtokens + static_cast<std::int64_t>(token) * chunks.columns + column, sums);
    }
#pragma unroll
    for (int j = 0; j < kPack; ++j) sums[j] = 0.0f;
  };
  for (int at = begin; at < end; at += kRowsAtOnce) {
    Pack packs[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (at + i >= end) continue;
      packs[i] =
          load(dout + static_cast<std::int64_t>(chunks.rows[at + i]) * chunks.columns + column);
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      if (at + i >= end) continue;
      const int next = chunks.keys[at + i];
      if (next != token) {
        leave();
        token = next;
      }
      float values[kPack];
      unpack(packs[i], values);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sums[j] += values[j];
    }
  }
  leave();
}

// A warp has a chunk whose last token goes on and did not come from before, or began in it.
__global__ void edges_kernel(Chunks chunks, float* dtokens) {
  const int lane = threadIdx.x % kWarp;
  int chunk = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int begin = chunk * kChunk;
  if (begin >= chunks.count) return;
  const int end = end_of(chunks, chunk);
  const int column = (blockIdx.y * kWarp + lane) * kPack;
  if (column >= chunks.columns || end >= chunks.count) return;
  const int token = chunks.keys[end - 1];
  if (chunks.keys[end] != token) return;
  if (begin > 0 && chunks.keys[begin - 1] == token) return;  // an earlier chunk does it

  const auto edge = [&](int which, int side) {
    return chunks.edges + (static_cast<std::int64_t>(which) * 2 + side) * chunks.columns + column;
  };
  float sums[kPack];
  load_floats(edge(chunk, 1), sums);
#pragma unroll 4
  for (++chunk; chunk * kChunk < chunks.count && chunks.keys[chunk * kChunk] == token; ++chunk) {
    float more[kPack];
    load_floats(edge(chunk, 0), more);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sums[j] += more[j];
  }
  add_to(dtokens + static_cast<std::int64_t>(token) * chunks.columns + column, sums);
}

int count_of(EmbeddingShape shape) {
  return shape.batch * shape.length;
}

int bits_of(int vocabulary) {
  int bits = 1;
  while (bits < 31 && (1 << bits) < vocabulary) ++bits;
  return bits;
}

// Keys and rows before and after, the sums at the edges of chunks, then what the sort needs.
struct Scratch {
  int* keys;
  int* rows;
  int* sorted_keys;
  int* sorted_rows;
  float* edges;
  void* sort;
};

int chunks_of(EmbeddingShape shape) {
  return (count_of(shape) + kChunk - 1) / kChunk;
}

std::size_t rounded(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

std::size_t edges_bytes(EmbeddingShape shape) {
  return rounded(sizeof(float) * 2 * chunks_of(shape) * shape.columns);
}

cudaError_t sort(const Scratch& scratch, std::size_t& bytes, EmbeddingShape shape, Stream stream) {
  return cub::DeviceRadixSort::SortPairs(scratch.sort, bytes, scratch.keys, scratch.sorted_keys,
                                         scratch.rows, scratch.sorted_rows, count_of(shape), 0,
                                         bits_of(shape.vocabulary), stream);
}

void check(EmbeddingShape shape, const char* kernel) {
  require(shape.batch > 0 && shape.length > 0, kernel, "at least one token");
  require(shape.columns > 0 && shape.columns % kPack == 0, kernel,
          "columns that are a multiple of 8");
}

}  // namespace

void embedding_forward(const std::int64_t* ids, const Bf16* tokens, const Bf16* positions,
                       Bf16* out, EmbeddingShape shape, Stream stream) {
  check(shape, "embedding_forward");
  const std::int64_t packs = std::int64_t{count_of(shape)} * (shape.columns / kPack);
  forward_kernel<<<static_cast<unsigned>((packs + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      ids, tokens, positions, out, shape);
  check_launch("embedding_forward");
}

std::size_t embedding_backward_scratch(EmbeddingShape shape) {
  std::size_t sort_bytes = 0;
  const cudaError_t error = sort({}, sort_bytes, shape, nullptr);
  require(error == cudaSuccess, "embedding_backward", "a device");
  return 4 * rounded(sizeof(int) * count_of(shape)) + edges_bytes(shape) + rounded(sort_bytes);
}

void embedding_backward(const std::int64_t* ids, const Bf16* dout, float* dtokens,
                        float* dpositions, void* scratch, EmbeddingShape shape, Stream stream) {
  check(shape, "embedding_backward");
  const int count = count_of(shape);
  const std::size_t part = rounded(sizeof(int) * count);
  char* memory = static_cast<char*>(scratch);
  const auto ints = [&](int index) { return reinterpret_cast<int*>(memory + index * part); };
  const Scratch parts{ints(0),
                      ints(1),
                      ints(2),
                      ints(3),
                      reinterpret_cast<float*>(memory + 4 * part),
                      memory + 4 * part + edges_bytes(shape)};

  const int position_packs = shape.length * (shape.columns / kPack);
  positions_kernel<<<(position_packs + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      dout, dpositions, shape);
  number_kernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(ids, parts.keys,
                                                                            parts.rows, count);
  std::size_t sort_bytes = 0;
  cudaError_t error = sort({}, sort_bytes, shape, stream);  // asks for its size
  if (error == cudaSuccess) error = sort(parts, sort_bytes, shape, stream);
  require(error == cudaSuccess, "embedding_backward", "a device that can sort");
  constexpr int kWarps = kThreads / kWarp;
  const dim3 grid((chunks_of(shape) + kWarps - 1) / kWarps,
                  (shape.columns + kWarp * kPack - 1) / (kWarp * kPack));
  const Chunks chunks{parts.sorted_keys, parts.sorted_rows, parts.edges, count, shape.columns};
  chunks_kernel<<<grid, kThreads, 0, stream>>>(chunks, dout, dtokens);
  edges_kernel<<<grid, kThreads, 0, stream>>>(chunks, dtokens);
  check_launch("embedding_backward");
}

}  // namespace lockstep::kernels
