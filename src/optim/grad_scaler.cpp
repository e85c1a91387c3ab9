#include "lockstep/grad_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "lockstep/error.h"
#include "lockstep/optimizer.h"
#include "optim/tensor_groups.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> gradients_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const Optimizer::Group& group : optimizer.groups()) {
    for (const NamedParameter& parameter : group.parameters) {
      const at::Tensor& gradient = parameter.tensor.grad();
      if (gradient.defined()) {
        gradients.push_back(gradient);
      }
    }
  }
  return gradients;
}

void refuse_half(const Optimizer& optimizer) {
  for (const NamedParameter& parameter : optimizer.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined() && gradient.scalar_type() == at::kHalf) {
      throw InvalidArgument(concat("GradScaler: the gradient of ", parameter.name,
                                   " is float16, too narrow to be unscaled; keep parameters in "
                                   "float32 and use Autocast"));
    }
  }
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  if (!(options.init_scale > 0)) {
    throw InvalidArgument(
        concat("GradScaler: init_scale is ", options.init_scale, "; it must be positive"));
  }
  if (!(options.growth_factor > 1)) {
    throw InvalidArgument(
        concat("GradScaler: growth_factor is ", options.growth_factor, "; it must be above 1"));
  }
  if (!(options.backoff_factor < 1 && options.backoff_factor > 0)) {
    throw InvalidArgument(concat("GradScaler: backoff_factor is ", options.backoff_factor,
                                 "; it must be between 0 and 1"));
  }
  if (options.growth_interval < 1) {
    throw InvalidArgument(concat("GradScaler: growth_interval is ", options.growth_interval,
                                 "; it must be positive"));
  }
}

void GradScaler::make_scale(const at::Device& device) {
  scale_ = at::full({}, options_.init_scale, at::TensorOptions(device).dtype(at::kFloat));
  growth_tracker_ =
      at::full({}, initial_growth_tracker_, at::TensorOptions(device).dtype(at::kInt));
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) {
    return loss;
  }
  if (!scale_.defined()) {
    make_scale(loss.device());
  }
  return loss.mul(scale_.to(loss.device(), /*non_blocking=*/true));
}

void GradScaler::find_overflow(Optimizer& optimizer, const at::Tensor& inverse_scale,
                               const char* caller) {
  if (stage_ != Stage::ready) {
    throw InvalidArgument(concat(
        "GradScaler: ", caller, "() comes once in an iteration, before step(); update() ends one"));
  }
  const std::vector<at::Tensor> gradients = gradients_of(optimizer);
  found_inf_ = at::zeros({}, scale_.options());
  for (const auto& positions : group_by_device_and_dtype(gradients)) {
    const std::vector<at::Tensor> group = select(gradients, positions);
    const at::Device device = group.front().device();
    // Work on other devices than the scale's is combined afterwards.
    at::Tensor found =
        device == scale_.device() ? found_inf_ : at::zeros({}, scale_.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(group, found, inverse_scale.to(device));
    if (device != scale_.device()) {
      found_inf_.copy_(at::maximum(found_inf_, found.to(scale_.device())));
    }
  }
}

void GradScaler::unscale(Optimizer& optimizer) {
  if (!options_.enabled) {
    return;
  }
  const at::NoGradGuard no_grad;
  refuse_half(optimizer);
  if (!scale_.defined()) {
    throw InvalidArgument("GradScaler: unscale() before any scale(loss)");
  }
  // The reciprocal in float64, as Python does: float32 division is not exact everywhere.
  find_overflow(optimizer, scale_.to(at::kDouble).reciprocal().to(at::kFloat), "unscale");
  stage_ = Stage::unscaled;
}

void GradScaler::check(Optimizer& optimizer) {
  if (!options_.enabled) {
    return;
  }
  const at::NoGradGuard no_grad;
  if (!scale_.defined()) {
    throw InvalidArgument("GradScaler: check() or step() before any scale(loss)");
  }
  find_overflow(optimizer, at::full({}, 1.0, scale_.options()), "check");
  stage_ = Stage::checked;
}

const at::Tensor& GradScaler::found_inf() const {
  if (!found_inf_.defined()) {
    throw InvalidArgument("GradScaler: found_inf() is known between unscale() and update() only");
  }
  return found_inf_;
}

void GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return;
  }
  if (stage_ == Stage::stepped) {
    throw InvalidArgument(
        "GradScaler: step() was already called in this iteration; update() ends it");
  }
  if (stage_ == Stage::ready) {
    check(optimizer);
  }
  optimizer.step(
      {.grad_scale = stage_ == Stage::unscaled ? at::Tensor() : scale_, .found_inf = found_inf_});
  stage_ = Stage::stepped;
}

void GradScaler::update() {
  if (!options_.enabled) {
    return;
  }
  if (!found_inf_.defined()) {
    throw InvalidArgument("GradScaler: update() before any step()");
  }
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  found_inf_ = at::Tensor();
  stage_ = Stage::ready;
}

double GradScaler::get_scale() const {
  if (!options_.enabled) {
    return 1.0;
  }
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

State GradScaler::state() const {
  State result;
  if (!options_.enabled) {
    return result;
  }
  if (scale_.defined()) {
    result.tensors["scale"] = scale_;
    result.tensors["growth_tracker"] = growth_tracker_;
  } else if (initial_growth_tracker_ != 0) {  // loaded, and not used yet
    result.tensors["scale"] = at::full({}, options_.init_scale, at::kFloat);
    result.tensors["growth_tracker"] = at::full({}, initial_growth_tracker_, at::kInt);
  }
  result.values["init_scale"] = options_.init_scale;
  result.values["growth_factor"] = options_.growth_factor;
  result.values["backoff_factor"] = options_.backoff_factor;
  result.values["growth_interval"] = options_.growth_interval;
  return result;
}

void GradScaler::load_state(const State& state) {
  if (!options_.enabled) {
    return;
  }
  GradScalerOptions options = options_;
  std::int64_t growth_tracker = 0;
  try {
    options.init_scale = state.values.at("init_scale").get<double>();
    options.growth_factor = state.values.at("growth_factor").get<double>();
    options.backoff_factor = state.values.at("backoff_factor").get<double>();
    options.growth_interval = state.values.at("growth_interval").get<std::int64_t>();
  } catch (const nlohmann::json::exception& error) {
    throw InvalidArgument(concat("GradScaler: this is not the state of one: ", error.what()));
  }
  const auto scale = state.tensors.find("scale");
  const auto tracker = state.tensors.find("growth_tracker");
  if (scale != state.tensors.end() && tracker != state.tensors.end()) {
    options.init_scale = scale->second.item<double>();
    growth_tracker = tracker->second.item<std::int64_t>();
  }
  *this = [&] {
    GradScaler loaded(options);
    loaded.initial_growth_tracker_ = growth_tracker;
    if (scale_.defined()) {
      loaded.make_scale(scale_.device());
    }
    return loaded;
  }();
}

}  // namespace lockstep
