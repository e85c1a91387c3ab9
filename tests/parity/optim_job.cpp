// Runs the cases that optim_parity.py sends, one JSON object a line, and answers each with one
// line. Weights and gradients come from torch's generator with the case's seed, so both sides have
// the same.
#include <iostream>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/autocast.h"
#include "lockstep/clip_grad.h"
#include "lockstep/ema.h"
#include "lockstep/error.h"
#include "lockstep/grad_scaler.h"
#include "lockstep/lr_schedule.h"
#include "lockstep/optimizer.h"

using namespace lockstep;
using nlohmann::json;
using torch::Tensor;

namespace {

const std::map<std::string, torch::ScalarType> kTypes = {{"float32", torch::kFloat},
                                                         {"float64", torch::kDouble},
                                                         {"bfloat16", torch::kBFloat16},
                                                         {"float16", torch::kHalf}};

torch::ScalarType type_of(const json& test) {
  return kTypes.at(test.value("dtype", "float32"));
}

// Every byte, so that the comparison is of bits.
std::string bytes(const Tensor& tensor) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const Tensor flat = tensor.detach().contiguous().view(-1).view(torch::kUInt8);
  const auto* data = flat.const_data_ptr<std::uint8_t>();
  std::string text;
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    text += kDigits[data[i] >> 4];
    text += kDigits[data[i] & 15];
  }
  return text;
}

json bytes(const std::vector<Tensor>& tensors) {
  json list = json::array();
  for (const Tensor& tensor : tensors) {
    list.push_back(tensor.numel() == 0 ? "" : bytes(tensor));
  }
  return list;
}

std::vector<Tensor> make_parameters(torch::ScalarType type) {
  std::vector<Tensor> parameters;
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{7, 5}, {5}, {3, 2, 2}, {1}, {130}, {0}}) {
    parameters.push_back(torch::randn(shape).to(type).requires_grad_());
  }
  return parameters;
}

std::vector<NamedParameter> named(const std::vector<Tensor>& tensors) {
  std::vector<NamedParameter> result;
  for (const Tensor& tensor : tensors) {
    result.push_back({concat("p", result.size()), tensor});
  }
  return result;
}

void set_gradients(const std::vector<Tensor>& parameters, int step, double factor) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor gradient = torch::randn(parameters[i].sizes()) * factor;
    // The second parameter has no gradient in odd steps.
    parameters[i].mutable_grad() =
        i == 1 && step % 2 == 1 ? Tensor() : gradient.to(parameters[i].scalar_type());
  }
}

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

OptimizerOptions options_of(const json& test) {
  const json& given = test.at("options");
  const auto common = [&](auto options) {
    options.lr = given.value("lr", options.lr);
    options.weight_decay = given.value("weight_decay", options.weight_decay);
    options.maximize = given.value("maximize", options.maximize);
    return options;
  };
  const auto adam = [&](auto options) {
    options.betas = given.value("betas", options.betas);
    options.eps = given.value("eps", options.eps);
    options.amsgrad = given.value("amsgrad", options.amsgrad);
    return options;
  };
  if (test.at("type") == "Adam") {
    return adam(common(AdamOptions{}));
  }
  if (test.at("type") == "AdamW") {
    return adam(common(AdamWOptions{}));
  }
  SGDOptions options = common(SGDOptions{});
  options.momentum = given.value("momentum", 0.0);
  options.dampening = given.value("dampening", 0.0);
  options.nesterov = given.value("nesterov", false);
  return options;
}

std::unique_ptr<Optimizer> make(const json& test, const std::vector<Tensor>& parameters) {
  const auto all = named(parameters);
  if (!test.value("groups", false)) {
    return make_optimizer(all, options_of(test));
  }
  return make_optimizer(
      {ParamGroup{.parameters = {all.begin(), all.begin() + 2}},
       ParamGroup{.parameters = {all.begin() + 2, all.end()}, .lr = 0.03, .weight_decay = 0.2}},
      options_of(test));
}

json run_optimizer(const json& test) {
  const auto parameters = make_parameters(type_of(test));
  auto optimizer = make(test, parameters);
  for (int step = 0; step < test.at("steps"); ++step) {
    set_gradients(parameters, step, 1.0);
    StepArguments arguments;
    if (test.value("scaled", false)) {
      arguments.grad_scale = torch::full({}, 3.0f);
      arguments.found_inf = torch::full({}, step % 5 == 3 ? 1.0f : 0.0f);
    }
    optimizer->step(arguments);
  }
  const PythonOptimizerState python = to_python(optimizer->state());
  json state = json::object();
  for (const auto& [number, tensors] : python.state) {
    for (const auto& [key, tensor] : tensors) {
      state[std::to_string(number)][key] = tensor.numel() == 0 ? "" : bytes(tensor);
    }
  }
  return {{"parameters", bytes(parameters)}, {"state", state}, {"groups", python.param_groups}};
}

json run_clip(const json& test) {
  std::vector<Tensor> parameters;
  for (const std::string name : test.at("dtypes")) {
    const std::int64_t size = 3 + 40 * static_cast<std::int64_t>(parameters.size());
    parameters.push_back(torch::zeros({size}).to(kTypes.at(name)).requires_grad_());
  }
  for (const Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.scalar_type());
  }
  const auto list = named(parameters);
  json answer;
  if (test.contains("limit")) {
    clip_grad_value(list, test.at("limit"));
  } else {
    const double norm_type = test.at("norm_type") == "inf" ? std::numeric_limits<double>::infinity()
                                                           : test.at("norm_type").get<double>();
    answer["norm"] =
        bytes(clip_grad_norm(list, {.max_norm = test.at("max_norm"), .norm_type = norm_type}));
  }
  answer["gradients"] = bytes(gradients_of(parameters));
  return answer;
}

// factors: what each iteration multiplies the weights with; infinities overflow.
json run_scaler(const json& test) {
  Tensor weight = torch::randn({16}).requires_grad_();
  auto optimizer = make(test, {weight});
  GradScaler scaler({.init_scale = 64, .growth_interval = 3});
  json scales = json::array();
  for (const double factor : test.at("factors")) {
    optimizer->zero_grad();
    const double used = factor < 0 ? std::numeric_limits<double>::infinity() : factor;
    scaler.scale((weight.square() * used).sum()).backward();
    if (test.at("unscale")) {
      scaler.unscale(*optimizer);
      clip_grad_norm(optimizer->parameters(), {.max_norm = 0.7});
    }
    scaler.step(*optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  return {{"scales", scales}, {"weight", bytes(weight)}};
}

json run_ema(const json& test) {
  const auto parameters = make_parameters(type_of(test));
  Tensor buffer = torch::zeros({2});
  Ema ema(named(parameters), {{"buffer", buffer}}, {.decay = test.at("decay")});
  const torch::NoGradGuard no_grad;
  for (int step = 0; step < test.at("steps"); ++step) {
    for (const Tensor& parameter : parameters) {
      parameter.add_(torch::randn(parameter.sizes()).to(parameter.scalar_type()));
    }
    buffer.add_(1);
    ema.update();
  }
  std::vector<Tensor> averages;
  for (const NamedParameter& parameter : named(parameters)) {
    averages.push_back(ema.state().tensors.at(parameter.name));
  }
  averages.push_back(ema.state().tensors.at("buffer"));
  return {{"averages", bytes(averages)}};
}

LRScheduleOptions schedule_of(const json& test) {
  const json& o = test.at("options_schedule");
  const std::string name = test.at("schedule");
  const std::int64_t warmup = o.value("warmup_steps", 0);
  const std::int64_t total = o.value("total_steps", 0);
  if (name == "constant") return ConstantSchedule{.warmup_steps = warmup};
  if (name == "linear") return LinearSchedule{.warmup_steps = warmup, .total_steps = total};
  if (name == "cosine") {
    return CosineSchedule{.warmup_steps = warmup,
                          .total_steps = total,
                          .cycles = o.value("cycles", 0.5),
                          .min_factor = o.value("min_factor", 0.0)};
  }
  if (name == "step") return StepSchedule{.step_size = o.at("step_size"), .gamma = o.at("gamma")};
  if (name == "inverse_sqrt") {
    return InverseSqrtSchedule{.warmup_steps = warmup, .timescale = o.value("timescale", 0)};
  }
  if (name == "noam") {
    return NoamSchedule{.model_size = o.at("model_size"), .warmup_steps = warmup};
  }
  if (name == "one_cycle") {
    return OneCycleSchedule{.total_steps = total,
                            .max_lr = o.at("max_lr").get<double>(),
                            .pct_start = o.value("pct_start", 0.3),
                            .anneal = o.value("linear", false) ? OneCycleSchedule::Anneal::linear
                                                               : OneCycleSchedule::Anneal::cosine,
                            .three_phase = o.value("three_phase", false)};
  }
  using Plateau = PlateauSchedule;
  return Plateau{.mode = o.value("max", false) ? Plateau::Mode::max : Plateau::Mode::min,
                 .factor = o.value("factor", 0.1),
                 .patience = o.value("patience", 10),
                 .threshold = o.value("threshold", 1e-4),
                 .threshold_mode = o.value("absolute", false) ? Plateau::ThresholdMode::absolute
                                                              : Plateau::ThresholdMode::relative,
                 .cooldown = o.value("cooldown", 0),
                 .min_lr = o.value("min_lr", 0.0)};
}

json run_schedule(const json& test) {
  const auto parameters = make_parameters(torch::kFloat);
  auto optimizer = make(test, parameters);
  LRSchedule schedule(schedule_of(test));
  json rates = json::array();
  for (std::int64_t step = 0; step < test.at("steps"); ++step) {
    if (test.contains("metrics")) {
      schedule.observe(*optimizer, test.at("metrics")[step]);
    } else {
      schedule.apply(*optimizer, step);
    }
    rates.push_back({optimizer->lr(0), optimizer->lr(1), optimizer->momentum(0)});
  }
  return {{"rates", rates}};
}

// A step of a linear model on two ranks and two micro-batches each, as sums that are scaled once.
json run_accumulation(const json& test) {
  Tensor weight = torch::randn({4, 5}).requires_grad_();
  auto optimizer = make(test, {weight});
  for (int step = 0; step < test.at("steps"); ++step) {
    std::vector<Tensor> of_rank;
    std::int64_t count = 0;
    for (const json& rank : test.at("batches")) {
      weight.mutable_grad().reset();
      for (const std::int64_t rows : rank) {
        const Tensor input = torch::randn({rows, 5});
        const Tensor target = torch::randn({rows, 4});
        torch::mse_loss(torch::mm(input, weight.t()), target, torch::Reduction::Sum).backward();
        count += rows * 4;
      }
      of_rank.push_back(weight.grad());
    }
    weight.mutable_grad() = of_rank[0] + of_rank[1];
    clip_grad_norm(named({weight}), {.max_norm = test.at("max_norm"), .scale = 1.0 / count});
    optimizer->step();
  }
  return {{"weight", bytes(weight)}};
}

json run_autocast(const json& test) {
  Tensor first = torch::randn({8, 4}).requires_grad_();
  Tensor second = torch::randn({1, 8}).requires_grad_();
  auto optimizer = make(test, {first, second});
  for (int step = 0; step < test.at("steps"); ++step) {
    optimizer->zero_grad();
    const Tensor input = torch::randn({6, 4});
    Tensor loss;
    {
      const Autocast autocast({.dtype = type_of(test)});
      const Tensor hidden = torch::relu(torch::linear(input, first));
      loss = torch::mse_loss(torch::linear(hidden, second), input.narrow(1, 0, 1));
    }
    loss.backward();
    optimizer->step();
  }
  return {{"weights", bytes(std::vector<Tensor>{first, second})}};
}

json run(const json& test) {
  torch::manual_seed(test.value("seed", 1));
  const std::string kind = test.at("kind");
  if (kind == "optimizer") return run_optimizer(test);
  if (kind == "clip") return run_clip(test);
  if (kind == "scaler") return run_scaler(test);
  if (kind == "ema") return run_ema(test);
  if (kind == "schedule") return run_schedule(test);
  if (kind == "accumulation") return run_accumulation(test);
  if (kind == "autocast") return run_autocast(test);
  throw std::runtime_error("unknown kind " + kind);
}

}  // namespace

int main() {
  torch::set_num_threads(1);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << run(json::parse(line)).dump() << "\n";
  }
}
