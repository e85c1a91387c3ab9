// The models of models.py, in C++: the same names, the same order of registration, the same calls.
#pragma once

#include <vector>

#include <torch/torch.h>

namespace parity {

namespace F = torch::nn::functional;

struct Mlp : torch::nn::Module {
  explicit Mlp(const std::vector<std::int64_t>& sizes = {20, 64, 64, 10}) {
    register_module("layers", layers);
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      layers->push_back(torch::nn::Linear(sizes[i], sizes[i + 1]));
    }
  }

  torch::Tensor forward(torch::Tensor x) {
    const std::size_t last = layers->size() - 1;
    for (std::size_t i = 0; i < last; ++i) {
      x = torch::relu(layers->at<torch::nn::LinearImpl>(i).forward(x));
    }
    return layers->at<torch::nn::LinearImpl>(last).forward(x);
  }

  torch::nn::ModuleList layers;
};

struct ConvNet : torch::nn::Module {
  ConvNet() {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    register_module("head", head);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm1(conv1(x)));
    x = torch::relu(norm2(conv2(x)));
    return head(x.mean({2, 3}));
  }

  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm1{8};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 16, 3).stride(2)};
  torch::nn::BatchNorm2d norm2{16};
  torch::nn::Linear head{16, 10};
};

// What torch.nn.Linear computes. torch::nn::Linear's own forward multiplies first and adds the bias
// afterwards when the input has three dimensions, which rounds twice where Python rounds once.
inline torch::Tensor linear(const torch::nn::Linear& layer, const torch::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

struct Block : torch::nn::Module {
  Block(std::int64_t width, std::int64_t heads)
      : heads(heads),
        ln_1(register_module("ln_1", norm(width))),
        attn(register_module("attn", torch::nn::Linear(width, 3 * width))),
        proj(register_module("proj", torch::nn::Linear(width, width))),
        ln_2(register_module("ln_2", norm(width))),
        fc(register_module("fc", torch::nn::Linear(width, 4 * width))),
        fc_proj(register_module("fc_proj", torch::nn::Linear(4 * width, width))) {}

  torch::Tensor attention(const torch::Tensor& x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    std::vector<torch::Tensor> parts = linear(attn, x).split(width, 2);
    for (torch::Tensor& part : parts) {
      part = part.view({batch, length, heads, width / heads}).transpose(1, 2);
    }
    const torch::Tensor y = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return linear(proj, y.transpose(1, 2).reshape({batch, length, width}));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(ln_1(x));
    return x + linear(fc_proj, torch::gelu(linear(fc, ln_2(x))));
  }

  static torch::nn::LayerNorm norm(std::int64_t width) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
  }

  std::int64_t heads;
  torch::nn::LayerNorm ln_1;
  torch::nn::Linear attn, proj;
  torch::nn::LayerNorm ln_2;
  torch::nn::Linear fc, fc_proj;
};

// A parameter that is registered twice, as tied weights are in Python.
struct TiedHead : torch::nn::Module {
  explicit TiedHead(torch::Tensor tied) : weight(register_parameter("weight", std::move(tied))) {}

  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }

  torch::Tensor weight;
};

struct GptOptions {
  std::int64_t vocabulary = 65;
  std::int64_t length = 16;
  std::int64_t width = 64;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
};

struct Gpt : torch::nn::Module {
  explicit Gpt(const GptOptions& options = {})
      : wte(register_module("wte", torch::nn::Embedding(options.vocabulary, options.width))),
        wpe(register_module("wpe", torch::nn::Embedding(options.length, options.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        ln_f(register_module("ln_f", Block::norm(options.width))),
        head(register_module("head", std::make_shared<TiedHead>(wte->weight))) {
    for (std::int64_t i = 0; i < options.layers; ++i) {
      blocks->push_back(std::make_shared<Block>(options.width, options.heads));
    }
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = wte(tokens) + wpe(torch::arange(tokens.size(1)));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head->forward(ln_f(x));
  }

  torch::nn::Embedding wte, wpe;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm ln_f;
  std::shared_ptr<TiedHead> head;
};

struct Branches : torch::nn::Module {
  Branches() {
    register_module("stem", stem);
    register_module("left", left);
    register_module("right", right);
    register_module("head", head);
  }

  torch::Tensor forward(torch::Tensor x, int choice) {
    x = torch::relu(stem(x));
    if (choice == 0) {
      x = left(x);
    } else if (choice == 1) {
      x = right(x);
    }
    return head(torch::relu(x));
  }

  torch::nn::Linear stem{20, 32}, left{32, 32}, right{32, 32}, head{32, 10};
};

struct SparseBag : torch::nn::Module {
  SparseBag() {
    register_module("embedding", embedding);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& tokens) { return head(embedding(tokens).mean(1)); }

  torch::nn::Embedding embedding{torch::nn::EmbeddingOptions(100, 16).sparse(true)};
  torch::nn::Linear head{16, 10};
};

// The losses. `forward` is the wrapped model's.

inline torch::Tensor targets(at::Generator& data) {
  return torch::randint(10, {8}, data, torch::kLong);
}

template <typename Forward>
torch::Tensor mlp_loss(Forward&& forward, at::Generator& data, int, int) {
  const auto x = torch::rand({8, 20}, data);
  const auto target = targets(data);
  return F::cross_entropy(forward(x), target);
}

template <typename Forward>
torch::Tensor convnet_loss(Forward&& forward, at::Generator& data, int, int) {
  const auto x = torch::rand({8, 3, 12, 12}, data);
  const auto target = targets(data);
  return F::cross_entropy(forward(x), target);
}

template <typename Forward>
torch::Tensor gpt_loss(Forward&& forward, at::Generator& data, int, int) {
  const auto tokens = torch::randint(65, {4, 17}, data, torch::kLong);
  const auto logits = forward(tokens.slice(1, 0, -1));
  return F::cross_entropy(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
}

template <typename Forward>
torch::Tensor unused_loss(Forward&& forward, at::Generator& data, int step, int rank) {
  const int choice = (step + rank * (step % 2)) % 3;
  const auto x = torch::rand({8, 20}, data);
  const auto target = targets(data);
  return F::cross_entropy(forward(x, choice), target);
}

template <typename Forward>
torch::Tensor sparse_loss(Forward&& forward, at::Generator& data, int, int) {
  const auto tokens = torch::randint(100, {8, 5}, data, torch::kLong);
  const auto target = targets(data);
  return F::cross_entropy(forward(tokens), target);
}

}  // namespace parity
