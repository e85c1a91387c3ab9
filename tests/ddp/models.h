#pragma once

#include <map>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/world.h"

// Small models, each with one property that data-parallel training must cope with.
namespace lockstep::testing {

inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

inline at::Tensor broadcast_copy(World& world, const at::Tensor& tensor) {
  at::Tensor copy = tensor.detach().clone();
  world.group().broadcast(copy);
  return copy;
}

inline bool equal_on_all_ranks(World& world, const at::Tensor& tensor) {
  const at::Tensor same = torch::tensor(equal_bits(tensor, broadcast_copy(world, tensor)) ? 1 : 0);
  world.group().all_reduce(same, {.op = ReduceOp::min});
  return same.item<int>() == 1;
}

struct Mlp : torch::nn::Module {
  Mlp() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first{8, 16}, second{16, 4};
};

struct Wide : torch::nn::Module {
  Wide() {
    for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(200, 200));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : *layers) x = torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList layers;
};

// The output layer uses the input layer's weight, registered a second time under another name.
struct Tied : torch::nn::Module {
  struct Head : torch::nn::Module {
    explicit Head(const at::Tensor& shared) {
      weight = register_parameter("weight", shared);
      bias = register_parameter("bias", torch::zeros({6}));
    }
    at::Tensor weight, bias;
  };
  Tied() {
    register_module("encoder", encoder);
    decoder = register_module("decoder", std::make_shared<Head>(encoder->weight));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::nn::functional::linear(torch::relu(encoder(x)), decoder->weight, decoder->bias);
  }
  torch::nn::Linear encoder{6, 6};
  std::shared_ptr<Head> decoder;
};

struct Branches : torch::nn::Module {
  Branches() {
    register_module("left", left);
    register_module("right", right);
  }
  at::Tensor forward(const at::Tensor& x, bool go_left) { return go_left ? left(x) : right(x); }
  torch::nn::Linear left{4, 4}, right{4, 4};
};

struct FirstOfTwo : torch::nn::Module {
  FirstOfTwo() { register_module("layers", layers); }
  at::Tensor forward(const at::Tensor& x) { return layers[0]->as<torch::nn::Linear>()->forward(x); }
  torch::nn::Sequential layers{torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)};
};

struct TwoHeads : torch::nn::Module {
  struct Output {
    at::Tensor a;
    std::map<std::string, at::Tensor> rest;
    int count = 2;
  };
  TwoHeads() {
    register_module("a", a);
    register_module("b", b);
  }
  Output forward(const at::Tensor& x) { return {.a = a(x), .rest = {{"b", b(x)}}}; }
  torch::nn::Linear a{4, 4}, b{4, 4};
};

struct Normed : torch::nn::Module {
  Normed() {
    register_module("norm", norm);
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(norm(x)); }
  torch::nn::BatchNorm1d norm{4};
  torch::nn::Linear linear{4, 2};
};

struct Sparse : torch::nn::Module {
  Sparse() {
    register_module("embedding", embedding);
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& rows) {
    return embedding(rows) + linear(torch::ones({1, 2}));
  }
  torch::nn::Embedding embedding{torch::nn::EmbeddingOptions(5, 2).sparse(true)};
  torch::nn::Linear linear{2, 2};
};

}  // namespace lockstep::testing
