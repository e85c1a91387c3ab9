#include "kernels/tile_attention.h"

#include <algorithm>

#include "kernels/attention_backward.cuh"
#include "kernels/attention_forward.cuh"
#include "kernels/attention_passes.cuh"
#include "kernels/tensor_maps.h"

namespace lockstep::kernels {
namespace {

using namespace attention;

Shape checked_shape(const char* name, const AttentionShape& shape) {
  require(has_tile_attention(shape), name,
          "a Hopper device, heads of 64 columns, and a multiple of 128 tokens");
  return {.batch = static_cast<int>(shape.batch),
          .tokens = static_cast<int>(shape.tokens),
          .heads = static_cast<int>(shape.heads),
          .scale = shape.scale};
}

template <class Kernel, class... Arguments>
void start(const char* name, Kernel kernel, int blocks, int threads, int shared_bytes,
           Stream stream, const Arguments&... arguments) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  kernel<<<blocks, threads, shared_bytes, stream>>>(arguments...);
  check_launch(name);
}

// How often all multiprocessors take an item, each of a head's part.
double rounds(const Shape& shape, int parts) {
  const int places = multiprocessors(), items = shape.all_heads() * parts;
  return static_cast<double>((items + places - 1) / places) / parts;
}

// Of a head. Two are worth what joining them costs where they fill the device better.
int parts_of(const Shape& shape) {
  return shape.tiles() > 1 && rounds(shape, 2) < 0.9 * rounds(shape, 1) ? 2 : 1;
}

int blocks_of(const Shape& shape, int parts) {
  return std::min(multiprocessors(), shape.all_heads() * parts);
}

// Of the sums that are left: one for each square, or for each tile that is joined.
std::int64_t rows_of_sums(const Shape& shape, int parts) {
  return std::int64_t{shape.batch} * shape.tokens / (parts == 1 ? kSide : kTokens);
}

std::int64_t row_values(const Shape& shape) {
  return std::int64_t{2} * shape.all_heads() * shape.tokens;
}

}  // namespace

bool has_tile_attention(const AttentionShape& shape) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  return shape.batch > 0 && shape.heads > 0 && shape.tokens > 0 && shape.head_size == kHeadSize &&
         shape.tokens % kTokens == 0 && shape.heads < kMost / (3 * kHeadSize) &&
         shape.tokens < kMost && shape.batch < kMost / shape.tokens &&
         shape.batch < kMost / shape.heads && has_tiles();
}

bool suits_tile_attention(const AttentionShape& shape) {
  const std::int64_t most_parts = shape.tokens > kTokens ? 2 : 1;
  return has_tile_attention(shape) &&
         3 * shape.batch * shape.heads * most_parts >= 2 * multiprocessors();
}

void tile_attention_forward(const AttentionShape& asked, const AttentionForward& call,
                            Stream stream) {
  const Shape shape = checked_shape("tile_attention_forward", asked);
  const std::int64_t rows = asked.batch * asked.tokens, columns = asked.heads * kHeadSize;
  const ForwardMatrices matrices{.queries = tile_map(call.qkv, rows, 3 * columns, kSide),
                                 .keys_and_values = tile_map(call.qkv, rows, 3 * columns, kTokens),
                                 .out = tile_map(call.out, rows, columns, kSide)};
  start("tile_attention_forward", forward_kernel,
        std::min(multiprocessors(), shape.all_heads() * items_of_head(shape)), kForwardThreads,
        sizeof(ForwardShared), stream, matrices, call.log_sum_exp, shape);
}

std::int64_t tile_attention_scratch(const AttentionShape& asked) {
  const Shape shape = checked_shape("tile_attention_scratch", asked);
  const int parts = parts_of(shape);
  const std::int64_t owners = parts == 1 ? blocks_of(shape, parts) : shape.all_heads() * parts;
  const std::int64_t values = row_values(shape) + owners * shape.tokens * kHeadSize;
  return values * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t tile_attention_sums(const AttentionShape& asked) {
  const Shape shape = checked_shape("tile_attention_sums", asked);
  return rows_of_sums(shape, parts_of(shape)) * asked.heads * kHeadSize;
}

UnfinishedSums tile_attention_backward(const AttentionShape& asked, const AttentionBackward& call,
                                       void* scratch, float* partial, Stream stream) {
  const Shape shape = checked_shape("tile_attention_backward", asked);
  const std::int64_t rows = asked.batch * asked.tokens, columns = asked.heads * kHeadSize;
  const BackwardMatrices matrices{
      .qkv = tile_map(call.qkv, rows, 3 * columns, kTokens),
      .gradient = tile_map(call.gradient, rows, columns, kTokens),
      .qkv_gradient = tile_map(call.qkv_gradient, rows, 3 * columns, kSide)};
  float* row_scratch = static_cast<float*>(scratch);
  float* sums = row_scratch + row_values(shape);
  const int parts = parts_of(shape), tiles = shape.all_heads() * shape.tiles();
  row_kernel<<<tiles, kPassThreads, 0, stream>>>(call.out, call.gradient, call.log_sum_exp,
                                                 row_scratch, shape);
  start("tile_attention_backward", backward_kernel, blocks_of(shape, parts), kBackwardThreads,
        sizeof(BackwardShared), stream, matrices, row_scratch, sums, partial, shape, parts);
  if (parts > 1) {
    start("tile_attention_backward", join_kernel, tiles, kJoinThreads, sizeof(JoinShared), stream,
          sums, call.qkv_gradient, partial, shape);
  }
  return {.partial = partial,
          .blocks = static_cast<int>(rows_of_sums(shape, parts)),
          .columns = static_cast<int>(columns)};
}

}  // namespace lockstep::kernels
