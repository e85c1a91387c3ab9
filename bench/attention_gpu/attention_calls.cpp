// Causal attention of bfloat16 with heads of 64 columns on one GPU, by our own kernels and by
// cuDNN.
//
//     attention_calls BATCH TOKENS HEADS ROUNDS
//
// Prints one line of JSON: milliseconds of a call, by its direction and who computes it. The ways
// take turns, each for a while, so that the device is as hot, and as slow, for one as for another.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include <ATen/cuda/CUDAEvent.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "kernels/tile_attention.h"
#include "models/fused_ops.h"

using namespace lockstep;

namespace {

constexpr int kHeadSize = 64;

at::Tensor random_rows(std::int64_t rows, std::int64_t columns) {
  return torch::randn({rows, columns}, at::kCUDA).to(at::kBFloat16);
}

at::Tensor bytes(std::int64_t count) {
  return torch::empty({count}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
}

// A call's milliseconds, over some 20.
double time_of(const std::function<void()>& call) {
  constexpr int kCalls = 20;
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  begin.record();
  for (int i = 0; i < kCalls; ++i) call();
  end.record();
  end.synchronize();
  return begin.elapsed_time(end) / kCalls;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: attention_calls BATCH TOKENS HEADS ROUNDS\n");
    return 2;
  }
  const kernels::AttentionShape shape{.batch = std::atol(argv[1]),
                                      .tokens = std::atol(argv[2]),
                                      .heads = std::atol(argv[3]),
                                      .head_size = kHeadSize,
                                      .scale = 1 / std::sqrt(float{kHeadSize})};
  kernels::Attention cudnn;
  if (!kernels::has_tile_attention(shape) || !cudnn.takes(shape)) {
    std::fprintf(stderr,
                 "attention_calls: needs a Hopper GPU, tokens that are a multiple of 128 and a "
                 "build with cuDNN's headers\n");
    return 1;
  }
  const std::int64_t rows = shape.batch * shape.tokens, columns = shape.heads * kHeadSize;
  const at::Tensor qkv = random_rows(rows, 3 * columns), gradient = random_rows(rows, columns);
  const at::Tensor out = torch::empty_like(gradient), qkv_gradient = torch::empty_like(qkv);
  const at::Tensor log_sum_exp = torch::empty({shape.batch, shape.heads, shape.tokens}, at::kCUDA);
  const at::Tensor tile_scratch = bytes(kernels::tile_attention_scratch(shape));
  const at::Tensor sums = torch::empty({kernels::tile_attention_sums(shape)}, at::kCUDA);
  const at::Tensor forward_scratch = bytes(cudnn.forward_scratch(shape));
  const at::Tensor backward_scratch = bytes(cudnn.backward_scratch(shape));
  const kernels::AttentionForward forward{
      .qkv = fused::bits(qkv), .out = fused::bits(out), .log_sum_exp = fused::floats(log_sum_exp)};
  const kernels::AttentionBackward backward{.qkv = fused::bits(qkv),
                                            .out = fused::bits(out),
                                            .log_sum_exp = fused::floats(log_sum_exp),
                                            .gradient = fused::bits(gradient),
                                            .qkv_gradient = fused::bits(qkv_gradient)};
  const auto stream = fused::stream();
  const std::map<std::string, std::function<void()>> ways = {
      {"forward, tiles", [&] { kernels::tile_attention_forward(shape, forward, stream); }},
      {"forward, cudnn",
       [&] { cudnn.forward(shape, forward, forward_scratch.data_ptr(), stream); }},
      {"backward, tiles",
       [&] {
         (void)kernels::tile_attention_backward(shape, backward, tile_scratch.data_ptr(),
                                                fused::floats(sums), stream);
       }},
      {"backward, cudnn",
       [&] { cudnn.backward(shape, backward, backward_scratch.data_ptr(), stream); }}};
  for (const auto& [name, call] : ways) time_of(call);
  nlohmann::json times;
  for (int round = 0; round < std::atoi(argv[4]); ++round) {
    for (const auto& [name, call] : ways) times[name].push_back(time_of(call));
  }
  std::printf("%s\n", times.dump().c_str());
  return 0;
}
