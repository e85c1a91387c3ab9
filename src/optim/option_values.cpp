#include "optim/option_values.h"

#include <type_traits>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Calls visit(name, member) for every option, under Python's name.
template <typename Options, typename Visit>
void for_each_option(Options& options, Visit&& visit) {
  visit("lr", options.lr);
  if constexpr (is_adam<std::remove_const_t<Options>>) {
    visit("betas", options.betas);
    visit("eps", options.eps);
    visit("weight_decay", options.weight_decay);
    visit("amsgrad", options.amsgrad);
  } else {
    visit("momentum", options.momentum);
    visit("dampening", options.dampening);
    visit("weight_decay", options.weight_decay);
    visit("nesterov", options.nesterov);
  }
  visit("maximize", options.maximize);
}

void check_not_negative(const char* option, double value) {
  if (!(value >= 0)) {  // also refuses NaN
    throw InvalidArgument(concat("optimizer: ", option, " is ", value, "; it cannot be negative"));
  }
}

void check_beta(const char* option, double value) {
  if (!(value >= 0 && value < 1)) {
    throw InvalidArgument(concat("optimizer: ", option, " is ", value, "; it must be in [0, 1)"));
  }
}

template <typename Value, typename Member>
void override_with(const std::optional<Value>& value, Member& member) {
  if (value) {
    member = *value;
  }
}

void refuse(bool is_set, const char* option, const std::string& type) {
  if (is_set) {
    throw InvalidArgument(
        concat("optimizer: a parameter group sets ", option, ", which ", type, " does not have"));
  }
}

template <typename Value>
void read_option(const json& values, const char* name, Value& member) {
  const auto found = values.find(name);
  if (found == values.end()) {
    return;
  }
  try {
    member = found->get<Value>();
  } catch (const json::exception&) {
    throw InvalidArgument(concat("optimizer state: option ", name, " is ", found->dump(),
                                 ", which is not a value for it"));
  }
}

}  // namespace

std::string optimizer_type(const OptimizerOptions& options) {
  static constexpr const char* kTypes[] = {"SGD", "Adam", "AdamW"};
  return kTypes[options.index()];
}

void check_options(const OptimizerOptions& options) {
  std::visit(
      [](const auto& values) {
        check_not_negative("lr", values.lr);
        check_not_negative("weight_decay", values.weight_decay);
        if constexpr (is_adam<std::decay_t<decltype(values)>>) {
          check_beta("betas[0]", values.betas[0]);
          check_beta("betas[1]", values.betas[1]);
          check_not_negative("eps", values.eps);
        } else {
          check_not_negative("momentum", values.momentum);
          if (values.nesterov && (values.momentum <= 0 || values.dampening != 0)) {
            throw InvalidArgument(concat(
                "optimizer: nesterov needs a momentum above 0 and no dampening; momentum is ",
                values.momentum, ", dampening ", values.dampening));
          }
        }
      },
      options);
}

OptimizerOptions options_of_group(const OptimizerOptions& defaults, const ParamGroup& group) {
  OptimizerOptions options = defaults;
  const std::string type = optimizer_type(defaults);
  std::visit(
      [&](auto& values) {
        override_with(group.lr, values.lr);
        override_with(group.weight_decay, values.weight_decay);
        if constexpr (is_adam<std::decay_t<decltype(values)>>) {
          override_with(group.betas, values.betas);
          override_with(group.eps, values.eps);
          refuse(group.momentum.has_value(), "momentum", type);
        } else {
          override_with(group.momentum, values.momentum);
          refuse(group.betas.has_value(), "betas", type);
          refuse(group.eps.has_value(), "eps", type);
        }
      },
      options);
  check_options(options);
  return options;
}

json options_to_json(const OptimizerOptions& options) {
  json values = json::object();
  std::visit(
      [&](const auto& members) {
        for_each_option(members,
                        [&](const char* name, const auto& value) { values[name] = value; });
      },
      options);
  return values;
}

OptimizerOptions options_from_json(const json& values, const OptimizerOptions& current) {
  OptimizerOptions options = current;
  std::visit(
      [&](auto& members) {
        for_each_option(members,
                        [&](const char* name, auto& value) { read_option(values, name, value); });
      },
      options);
  check_options(options);
  return options;
}

std::vector<std::string> state_keys(const OptimizerOptions& options) {
  return std::visit(
      [](const auto& values) -> std::vector<std::string> {
        if constexpr (!is_adam<std::decay_t<decltype(values)>>) {
          return {"momentum_buffer"};
        } else if (values.amsgrad) {
          return {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
        } else {
          return {"step", "exp_avg", "exp_avg_sq"};
        }
      },
      options);
}

}  // namespace lockstep
