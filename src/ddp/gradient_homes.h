#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace c10d {
class Reducer;
}

namespace lockstep {

/// Calls `visit` with every parameter whose gradient lies in a dense bucket, and with its place
/// there: a view that is laid out as the reducer lays out the gradient.
void visit_bucket_places(
    const c10d::Reducer& reducer,
    const std::function<void(at::Tensor& parameter, const at::Tensor& place)>& visit);

/// Lets backward compute the gradients of linear layers' weights straight into the reducer's
/// buckets, which saves it the copy: a tensor of its own for each gradient, written, read, and
/// written again.
///
/// It holds for float weights on the CPU that a matrix product has as its second factor, as they
/// are or transposed: torch::nn::Linear, at::linear, addmm, mm, matmul. The product is PyTorch's
/// own and so are its bits. It happens only where nobody can tell: in the first product of a
/// parameter after set_open(), in backward() of everything and without create_graph, for a
/// parameter that has no gradient and no hooks. Otherwise the gradient is a tensor of its own, as
/// ever.
///
/// Belongs to one reducer with one set of buckets: rebuilt buckets need a new one. The reducer must
/// have a communication hook; without one it divides gradients in place differently from how it
/// divides while it copies.
///
/// Thread rule: as for the model, one thread.
class GradientHomes {
 public:
  explicit GradientHomes(const c10d::Reducer& reducer);
  ~GradientHomes();
  GradientHomes(const GradientHomes&) = delete;
  GradientHomes& operator=(const GradientHomes&) = delete;

  /// True: the next backward may write to the buckets; what is in them is not needed any more.
  void set_open(bool open);

 private:
  struct Resident;

  std::vector<std::unique_ptr<Resident>> residents_;
};

}  // namespace lockstep
