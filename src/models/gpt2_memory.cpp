#include "lockstep/gpt2_memory.h"

#include <algorithm>

namespace lockstep {

// What autograd keeps of each operator in gpt2_block.cpp and linear_cross_entropy.cpp. Where a
// tensor is kept by two of them it counts once.
ModelSizes gpt2_sizes(const Gpt2Config& config, const Gpt2MemoryOptions& options) {
  const std::int64_t width = config.n_embd, inner = config.inner(), tokens = options.tokens;
  const std::int64_t flow = options.weight_bytes, product = options.product_bytes;
  const std::vector<std::int64_t> block = {width,
                                           width,  // ln_1
                                           3 * width * width,
                                           3 * width,  // c_attn
                                           width * width,
                                           width,  // attn c_proj
                                           width,
                                           width,  // ln_2
                                           width * inner,
                                           inner,  // c_fc
                                           inner * width,
                                           width};  // mlp c_proj
  ModelSizes sizes;
  sizes.units.assign(static_cast<std::size_t>(config.n_layer), block);
  const std::int64_t table = config.vocab_size * width;
  sizes.root = {table, config.n_positions * width, width, width};
  if (!config.tie_word_embeddings) sizes.root.push_back(table);

  const bool drops = options.dropout;
  // The block's input and the sum after attention; normed inputs of two products, queries, keys and
  // values, what attention gives, and both ends of the activation function.
  std::int64_t block_token = flow * 2 * width + product * (6 * width + 2 * inner);
  block_token += 4 * (config.n_head + 4);  // means of norms and attention's sums, in float32
  if (drops && config.resid_pdrop > 0) block_token += product * 2 * width;
  sizes.unit_sample_bytes = tokens * block_token;
  sizes.unit_input_sample_bytes = tokens * flow * width;
  // The last block's output, the normed one, and the gradient of that, which forward computes.
  std::int64_t root_token = flow * 2 * width + product * width;
  if (drops && config.embd_pdrop > 0) root_token += flow * width;
  sizes.root_sample_bytes = tokens * root_token;
  // Gradients on both sides of the MLP's activation function, and of the residual stream.
  sizes.work_sample_bytes = tokens * (product * 2 * inner + flow * 2 * width);

  // The head's gradient is there from forward on; the embedding's own comes at the end and is
  // added.
  sizes.held_bytes =
      table * flow + std::min(options.head_chunk_bytes, tokens * config.vocab_size * 4);
  sizes.last_bytes = config.tie_word_embeddings ? table * flow : 0;
  if (product < flow) {  // autocast keeps a copy of every weight in a product
    const std::int64_t weights = 4 * width * width + 2 * width * inner;
    sizes.held_bytes += product * (config.n_layer * weights + table);
  }
  return sizes;
}

}  // namespace lockstep
