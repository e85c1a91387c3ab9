#include "train/evaluation.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <nlohmann/json.hpp>

#include "lockstep/autocast.h"
#include "lockstep/error.h"
#include "lockstep/random_scope.h"
#include "train/autocast_type.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kEvaluationPurpose = 1;

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationMode() { module_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

using Sums = std::map<std::string, std::pair<double, double>>;  // by metric: sum and count

}  // namespace

std::vector<std::string> agree_on_names(ProcessGroup& group, const std::vector<std::string>& names,
                                        const std::string& what) {
  if (group.size() == 1) return names;
  std::vector<std::string> agreed;
  for (const auto& theirs : group.all_gather_json(names)) {
    auto list = theirs.get<std::vector<std::string>>();
    if (list.empty()) continue;
    if (!agreed.empty() && list != agreed) {
      throw InvalidArgument(concat("ranks report different ", what, ": ",
                                   nlohmann::json(agreed).dump(), " and ", theirs.dump(),
                                   "; every rank must report the same ones"));
    }
    agreed = std::move(list);
  }
  return agreed;
}

std::map<std::string, double> evaluate(World& world, torch::nn::Module& module,
                                       EvaluationTask& task, const TrainerOptions& options,
                                       const SlotShare& share, SlotSums& sums, std::int64_t step) {
  const EvaluationMode mode(module);
  const at::NoGradGuard no_grad;
  std::vector<Sums> slots(share.count());
  task.data().begin_epoch(0);
  while (const auto address = task.fetch()) {
    const RandomScope random({.seed = options.seed,
                              .step = step,
                              .slot = address->slot,
                              .micro_batch = address->step,
                              .purpose = kEvaluationPurpose},
                             world.device());
    std::optional<Autocast> autocast;
    if (const auto type = autocast_type(options.precision)) {
      autocast.emplace(AutocastOptions{.device_type = world.device().type(), .dtype = *type});
    }
    for (const auto& [name, metric] : task.metrics()) {
      auto& [sum, count] = slots.at(address->slot - share.first)[name];
      sum += metric.sum.item<double>();
      count += metric.count;
    }
  }
  std::vector<std::string> names;
  for (const auto& slot : slots) {
    for (const auto& [name, sum] : slot) names.push_back(name);
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  names = agree_on_names(world.group(), names, "metrics in an evaluation");

  std::vector<std::vector<double>> rows;
  for (auto& slot : slots) {
    std::vector<double>& row = rows.emplace_back();
    for (const auto& name : names) {
      row.push_back(slot[name].first);
      row.push_back(slot[name].second);
    }
  }
  const std::vector<double> totals = sums.add(rows);
  std::map<std::string, double> means;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double count = totals[2 * i + 1];
    means[names[i]] = count == 0 ? std::numeric_limits<double>::quiet_NaN() : totals[2 * i] / count;
  }
  for (const auto& [name, value] : task.conclude(world.group())) means[name] = value;
  return means;
}

}  // namespace lockstep
