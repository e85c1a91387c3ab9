#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>

#include "lockstep/optimizer.h"
#include "lockstep/pipeline.h"

// A model in parts with odd sizes, two tensors between parts of which one is a mask, norms with
// buffers; and one process that trains it without a Pipeline.
namespace lockstep::testing {

struct ChainFirst : torch::nn::Module {
  ChainFirst() { register_module("table", table); }
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& ids, const at::Tensor& mask) {
    return {table(ids), mask};
  }
  torch::nn::Embedding table{17, 13};
};

struct ChainBlock : torch::nn::Module {
  ChainBlock() {
    register_module("up", up);
    register_module("down", down);
    register_module("norm", norm);
  }
  std::vector<at::Tensor> forward(const at::Tensor& x, const at::Tensor& mask) {
    const at::Tensor inner = torch::tanh(up(x)) * mask.unsqueeze(-1);
    return {x + norm(down(inner).transpose(1, 2)).transpose(1, 2), mask};
  }
  torch::nn::Linear up{13, 29}, down{29, 13};
  torch::nn::BatchNorm1d norm{13};
};

struct ChainLast : torch::nn::Module {
  ChainLast() { register_module("head", head); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    return head((x * mask.unsqueeze(-1)).sum(1));
  }
  torch::nn::Linear head{13, 3};
};

// Weights depend on the number of the part alone.
template <typename M>
std::function<ModelPart()> seeded(int number) {
  return [number] {
    torch::manual_seed(100 + number);
    return model_part(std::make_shared<M>());
  };
}

inline std::vector<PipelinePart> chain_parts(int blocks = 3) {
  std::vector<PipelinePart> parts{{"first", seeded<ChainFirst>(0)}};
  for (int i = 0; i < blocks; ++i) {
    parts.push_back({"block" + std::to_string(i), seeded<ChainBlock>(i + 1)});
  }
  parts.push_back({"last", seeded<ChainLast>(blocks + 1)});
  return parts;
}

inline at::Tensor chain_loss(const Tensors& outputs, const Tensors& targets) {
  return torch::mse_loss(outputs[0], targets[0]);
}

struct ChainBatch {
  Tensors inputs, targets;
};

inline ChainBatch chain_batch(int step, int slot, std::int64_t rows) {
  torch::manual_seed(1000 + 10 * step + slot);
  return {.inputs = {torch::randint(17, {rows, 5}, torch::kLong), torch::rand({rows, 5}) > 0.3},
          .targets = {torch::randn({rows, 3})}};
}

/// One process without a Pipeline: all parts, micro-batch after micro-batch.
class ChainReference {
 public:
  explicit ChainReference(const std::vector<PipelinePart>& list) {
    for (const PipelinePart& entry : list) {
      parts_.push_back(entry.make());
      if (parts_.back().module) module_->register_module(entry.name, parts_.back().module);
    }
  }

  /// Adds the gradients of a batch, and returns its loss.
  at::Tensor accumulate(const ChainBatch& batch, int micro_batches) {
    const std::int64_t all = batch.inputs[0].size(0);
    std::int64_t begin = 0;
    at::Tensor sum;
    for (const std::int64_t rows : split_rows(all, micro_batches)) {
      Tensors x, targets;
      for (const at::Tensor& input : batch.inputs) x.push_back(input.narrow(0, begin, rows));
      for (const at::Tensor& target : batch.targets) {
        targets.push_back(target.narrow(0, begin, rows));
      }
      for (const ModelPart& part : parts_) x = part.forward(x);
      const at::Tensor loss =
          chain_loss(x, targets) * (static_cast<double>(rows) / static_cast<double>(all));
      loss.backward();
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
      begin += rows;
    }
    return sum;
  }

  torch::nn::Module& module() { return *module_; }

 private:
  std::vector<ModelPart> parts_;
  std::shared_ptr<torch::nn::Module> module_ = std::make_shared<torch::nn::Module>("reference");
};

/// Parameters and buffers by name.
inline std::map<std::string, at::Tensor> tensors_by_name(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const auto& item : module.named_parameters()) all[item.key()] = item.value().detach();
  for (const auto& item : module.named_buffers()) all[item.key()] = item.value().detach();
  return all;
}

}  // namespace lockstep::testing
