#include "models/fused_gpt2.h"

#include "lockstep/error.h"

// Where the CUDA kernels are not built.
namespace lockstep {

struct FusedGpt2::State {};

FusedGpt2::FusedGpt2() = default;
FusedGpt2::~FusedGpt2() = default;

std::string FusedGpt2::objection(const Gpt2Config&, const Gpt2Weights&, const at::Tensor&, bool) {
  return "lockstep was built without its CUDA kernels";
}

Gpt2Loss FusedGpt2::loss(const Gpt2Config&, const Gpt2Options&, const Gpt2Weights&,
                         const at::Tensor&, const at::Tensor&) {
  throw Error("Gpt2: lockstep was built without its CUDA kernels");
}

}  // namespace lockstep
