#include "lockstep/device_chain.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <c10/core/Device.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/error.h"
#include "lockstep/pipeline_schedule.h"

namespace lockstep {
namespace {

// "cpu:1" is the CPU under another name.
c10::Device physical_device(const std::string& name) {
  const bool is_cpu = name.starts_with("cpu:") && name.size() > 4 &&
                      name.find_first_not_of("0123456789", 4) == std::string::npos;
  if (is_cpu) return c10::Device(c10::DeviceType::CPU);
  try {
    return c10::Device(name);
  } catch (const std::exception&) {
    throw InvalidArgument(
        concat("DeviceChain: '", name, "' is no device; write cpu, cpu:1, cuda:0, ..."));
  }
}

struct ChainModule : torch::nn::Module {
  ChainModule() : torch::nn::Module("DeviceChain") {}
};

}  // namespace

std::vector<ChainVisit> chain_order(int runs, int pieces) {
  std::vector<ChainVisit> order;
  for (int turn = 0; turn < runs + pieces - 1; ++turn) {
    for (int run = runs - 1; run >= 0; --run) {
      const int piece = turn - run;
      if (piece >= 0 && piece < pieces) order.push_back({.run = run, .piece = piece});
    }
  }
  return order;
}

struct DeviceChain::Impl {
  /// Neighbours on one device.
  struct Run {
    c10::Device device{c10::DeviceType::CPU};
    std::vector<ModelPart> parts;
  };
  std::vector<Run> runs;
  std::vector<int> borders;
  std::shared_ptr<torch::nn::Module> module = std::make_shared<ChainModule>();

  static Tensors through(const Run& run, Tensors x) {
    for (at::Tensor& tensor : x) tensor = tensor.to(run.device, /*non_blocking=*/true);
    for (const ModelPart& part : run.parts) x = part.forward(x);
    return x;
  }
};

DeviceChain::DeviceChain(std::vector<PlacedPart> parts) : impl_(std::make_unique<Impl>()) {
  if (parts.empty()) throw InvalidArgument("DeviceChain: there is no part");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PlacedPart& placed = parts[i];
    if (!placed.part.forward) {
      throw InvalidArgument(concat("DeviceChain: part ", i, " has no forward"));
    }
    const c10::Device device = physical_device(placed.device);
    if (i == 0 || placed.device != parts[i - 1].device) {
      impl_->runs.push_back({.device = device, .parts = {}});
      if (i > 0) impl_->borders.push_back(static_cast<int>(i));
    }
    if (placed.part.module) {
      try {
        placed.part.module->to(device);
      } catch (const std::exception& error) {
        throw InvalidArgument(concat("DeviceChain: part ", i, " cannot go to ", placed.device, ": ",
                                     first_line(error.what())));
      }
      impl_->module->register_module(std::to_string(i), placed.part.module);
    }
    impl_->runs.back().parts.push_back(std::move(placed.part));
  }
}

DeviceChain::~DeviceChain() = default;
DeviceChain::DeviceChain(DeviceChain&&) noexcept = default;

Tensors DeviceChain::forward(const Tensors& inputs) {
  Tensors x = inputs;
  for (const Impl::Run& run : impl_->runs) x = Impl::through(run, std::move(x));
  return x;
}

Tensors DeviceChain::forward_in_pieces(const Tensors& inputs, int pieces) {
  if (inputs.empty() || inputs.front().dim() == 0) {
    throw InvalidArgument("DeviceChain: there are no rows to divide");
  }
  const std::vector<std::int64_t> rows = split_rows(inputs.front().size(0), pieces);
  std::vector<Tensors> x(pieces);
  std::int64_t begin = 0;
  for (int piece = 0; piece < pieces; ++piece) {
    for (const at::Tensor& input : inputs) {
      x[piece].push_back(input.narrow(0, begin, rows[piece]));
    }
    begin += rows[piece];
  }
  for (const ChainVisit& visit : chain_order(static_cast<int>(impl_->runs.size()), pieces)) {
    x[visit.piece] = Impl::through(impl_->runs[visit.run], std::move(x[visit.piece]));
  }
  Tensors joined;
  for (std::size_t i = 0; i < x.front().size(); ++i) {
    Tensors parts;
    for (const Tensors& piece : x) parts.push_back(piece.at(i));
    joined.push_back(at::cat(parts, 0));
  }
  return joined;
}

const std::vector<int>& DeviceChain::borders() const {
  return impl_->borders;
}
const std::shared_ptr<torch::nn::Module>& DeviceChain::module() const {
  return impl_->module;
}

}  // namespace lockstep
