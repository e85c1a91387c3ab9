#include "aten/vector_math.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/erfinv.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/trunc.h>

namespace lockstep {
namespace {

// Those that ATen/cpu/vml.h leaves to MKL. One element is computed by the calling thread alone.
bool call_each_once() {
  if (!at::globalContext().hasMKL()) return false;
  const at::NoGradGuard no_grad;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor value = at::full({1}, 0.5, type);
    for (const auto function :
         {&at::acos, &at::asin, &at::atan, &at::cos, &at::erf, &at::erfc, &at::erfinv, &at::exp,
          &at::log, &at::log10, &at::log2, &at::sin, &at::sqrt, &at::tan, &at::tanh, &at::trunc}) {
      function(value);
    }
  }
  return true;
}

}  // namespace

void settle_vector_math() {
  [[maybe_unused]] static const bool called = call_each_once();
}

}  // namespace lockstep
