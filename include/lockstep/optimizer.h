#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "lockstep/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;
};

/// The parameters of a module that require gradients, in the order of registration. A parameter
/// that is registered twice (tied weights) appears once, under its first name.
std::vector<NamedParameter> named_parameters(const torch::nn::Module& module);

/// As in torch.optim.SGD.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// As in torch.optim.Adam: weight_decay is added to the gradient.
struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
};

/// As in torch.optim.AdamW: weight_decay shrinks the weights themselves.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

using OptimizerOptions = std::variant<SGDOptions, AdamOptions, AdamWOptions>;

/// Parameters that are trained alike. What is not set here comes from the optimizer's options.
struct ParamGroup {
  std::vector<NamedParameter> parameters;
  std::optional<double> lr = std::nullopt;
  std::optional<double> weight_decay = std::nullopt;
  std::optional<double> momentum = std::nullopt;              // SGD
  std::optional<std::array<double, 2>> betas = std::nullopt;  // Adam, AdamW
  std::optional<double> eps = std::nullopt;                   // Adam, AdamW
};

/// Two groups: what is a matrix or larger decays, biases and the weights of norms do not. A group
/// without parameters is left out.
std::vector<ParamGroup> decay_groups(const torch::nn::Module& module, double weight_decay);

/// What the fused kernels take besides the gradients. All stay on their device: nothing is read by
/// the host.
struct StepArguments {
  /// Gradients are divided by it, in the pass that uses them (and left divided).
  at::Tensor grad_scale = {};
  /// Gradients count multiplied by it: clipping, a mean of sums. What they are left as is not said:
  /// where one of our kernels makes the step, as they were.
  at::Tensor grad_factor = {};
  /// 1: nothing changes; 0: an ordinary step.
  at::Tensor found_inf = {};
  /// A learning rate for each group that is read on the device, in place of the groups' own: so a
  /// captured CUDA graph sees changes. Empty: the groups' own.
  std::vector<at::Tensor> lr = {};
};

struct ZeroGradOptions {
  /// Free gradients, so that backward sets them anew. False: fill them with zeros where they are,
  /// which leaves views into the buckets of DistributedDataParallel as they are.
  bool set_to_none = true;
};

/// Changes parameters by their gradients. Runs PyTorch's fused kernels, on CPU and CUDA, and gives
/// the bits of torch.optim with `fused=True`.
///
/// Parameters without a gradient are left alone, as in Python. State is kept by parameter name.
/// There may be none at all, as on a rank that has no part of a small sharded model: then nothing
/// changes.
/// SGD, Adam and AdamW only choose the options; an optimizer of your own derives from this class
/// and overrides step(), state() and load_state().
///
/// Thread rule: one thread, and no backward on these parameters meanwhile.
class Optimizer {
 public:
  /// A group as it is now: the optimizer's options with the group's own values in them.
  struct Group {
    std::vector<NamedParameter> parameters;
    OptimizerOptions options;
    double initial_lr = 0;  // what schedules start from
  };

  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer();

  /// "SGD", "Adam" or "AdamW".
  std::string type() const;

  /// All that can be refused is refused before the first parameter changes: throws InvalidArgument
  /// for a gradient that is sparse, or of another shape, device or dtype than its parameter.
  virtual void step(const StepArguments& arguments = {});

  void zero_grad(const ZeroGradOptions& options = {});

  const std::vector<Group>& groups() const { return groups_; }
  /// Of all groups, in order.
  std::vector<NamedParameter> parameters() const;

  double lr(std::size_t group = 0) const;
  void set_lr(std::size_t group, double value);
  /// SGD's momentum, or the first of Adam's betas.
  double momentum(std::size_t group = 0) const;
  void set_momentum(std::size_t group, double value);

  /// Tensors "<parameter>.exp_avg" and so on, shared with this optimizer. Values: "type", and
  /// "groups" with Python's names of options, where "params" lists the names of the group's
  /// parameters.
  virtual State state() const;

  /// Copies. Learning rates and other options become those of the state, as in Python. Throws
  /// InvalidArgument, and changes nothing, where the state is of another type of optimizer, or of
  /// other parameters or shapes.
  virtual void load_state(const State& state);

 protected:
  Optimizer(std::vector<ParamGroup> groups, const OptimizerOptions& defaults);

 private:
  const Group& group_at(std::size_t group) const;

  std::vector<Group> groups_;
  std::map<std::string, std::map<std::string, at::Tensor>> state_;  // by parameter, then "exp_avg"
};

class SGD : public Optimizer {
 public:
  SGD(std::vector<ParamGroup> groups, const SGDOptions& options);
  SGD(std::vector<NamedParameter> parameters, const SGDOptions& options);
};

class Adam : public Optimizer {
 public:
  Adam(std::vector<ParamGroup> groups, const AdamOptions& options);
  Adam(std::vector<NamedParameter> parameters, const AdamOptions& options);
};

class AdamW : public Optimizer {
 public:
  AdamW(std::vector<ParamGroup> groups, const AdamWOptions& options);
  AdamW(std::vector<NamedParameter> parameters, const AdamWOptions& options);
};

/// Throws InvalidArgument for options out of range, a parameter or a name that appears twice, and
/// an option that this kind of optimizer does not have.
std::unique_ptr<Optimizer> make_optimizer(std::vector<ParamGroup> groups,
                                          const OptimizerOptions& options);
std::unique_ptr<Optimizer> make_optimizer(std::vector<NamedParameter> parameters,
                                          const OptimizerOptions& options);

/// optimizer.state_dict() of Python as plain data: parameters by their number, counted through all
/// groups, and options under Python's names.
struct PythonOptimizerState {
  std::map<std::int64_t, std::map<std::string, at::Tensor>> state = {};
  nlohmann::json param_groups = nlohmann::json::array();
};

/// From what Optimizer::state() gives. torch.optim's load_state_dict() takes the result; tensors
/// are shared.
PythonOptimizerState to_python(const State& state);

/// To what Optimizer::load_state() takes. Numbers become the names of `optimizer`'s parameters: in
/// Python the parameters must have been given in the same order.
State from_python(const PythonOptimizerState& python, const Optimizer& optimizer);

}  // namespace lockstep
