#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/model_part.h"

namespace lockstep {

/// A part of a model and where it is: "cuda:0", "cpu". The CPU counts as several devices, "cpu:0",
/// "cpu:1", so that what will run on two GPUs can be tried without one: between them nothing is
/// copied, but borders and order are the same.
struct PlacedPart {
  ModelPart part;
  std::string device;
};

/// One piece of a batch on one device's run of parts.
struct ChainVisit {
  int run = 0;
  int piece = 0;
  bool operator==(const ChainVisit&) const = default;
};

/// The order in which pieces of a batch are handed to devices: at each turn the last device first,
/// so that no device waits for one whose work was handed out after its own.
std::vector<ChainVisit> chain_order(int runs, int pieces);

/// A model whose parts are on several devices of one process: model parallelism without ranks.
///
///     lockstep::DeviceChain chain({{lockstep::model_part(first_half), "cuda:0"},
///                                  {lockstep::model_part(second_half), "cuda:1"}});
///     torch::Tensor output = chain.forward({input}).front();   // on cuda:1
///
/// Tensors are copied where neighbours are on different devices, and backward copies gradients
/// back.
/// Only one device computes at a time; forward_in_pieces() lets them overlap.
///
/// Thread rule: one thread.
class DeviceChain {
 public:
  /// Moves the parts to their devices. Throws InvalidArgument for an empty list and for a device
  /// that does not exist.
  explicit DeviceChain(std::vector<PlacedPart> parts);
  ~DeviceChain();
  DeviceChain(DeviceChain&&) noexcept;

  Tensors forward(const Tensors& inputs);
  /// The same for a batch in so many pieces of its rows (the last ones may be smaller): while a
  /// device computes one, the device before computes the next. Devices that work in the background,
  /// as GPUs do, then work at the same time; the CPU does not. Outputs are joined by rows.
  Tensors forward_in_pieces(const Tensors& inputs, int pieces);

  /// Numbers of the parts that begin on another device than the one before them ends on.
  const std::vector<int>& borders() const;
  /// All parts, under their numbers: for optimizers and files.
  const std::shared_ptr<torch::nn::Module>& module() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
