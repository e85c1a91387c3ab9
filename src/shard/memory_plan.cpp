#include "lockstep/memory_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <numeric>
#include <utility>

#include "lockstep/error.h"
#include "shard/flat_layout.h"

namespace lockstep {
namespace {

constexpr std::size_t kMeansInFlight = 2;  // as in the engine

std::int64_t elements(const std::vector<std::int64_t>& parameters) {
  return std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0});
}

// The most that was added up at once.
struct Most {
  std::int64_t parameters = 0, gradients = 0, activations = 0, peak = 0;
  void note(std::int64_t p, std::int64_t g, std::int64_t a) {
    parameters = std::max(parameters, p);
    gradients = std::max(gradients, g);
    activations = std::max(activations, a);
    peak = std::max(peak, p + g + a);
  }
};

/// What forward keeps, as backward goes through the units.
class Activations {
 public:
  Activations(const ModelSizes& model, const MemoryPlan& plan) : model_(model), plan_(plan) {}

  /// When the backward of unit `unit` runs; units.size(): when that of the root begins; -1: when
  /// all of them are done.
  std::int64_t at(std::ptrdiff_t unit) const {
    const auto count = static_cast<std::ptrdiff_t>(model_.units.size());
    const std::ptrdiff_t left = std::min(unit + 1, count);
    const bool again = plan_.activation_checkpointing;
    const std::int64_t each = again ? model_.unit_input_sample_bytes : model_.unit_sample_bytes;
    std::int64_t samples = left * each;
    if (unit == count) {
      samples += model_.root_sample_bytes;
    } else if (unit >= 0) {
      samples += model_.work_sample_bytes + (again ? model_.unit_sample_bytes : 0);
    }
    std::int64_t fixed = model_.held_bytes;
    if (unit < 0) fixed += model_.last_bytes;
    if (unit >= 0 && unit < count) fixed += gradients_of_a_moment(model_.units[unit]);
    return samples * plan_.micro_batch + fixed;
  }

 private:
  // Gradients before they are moved to where they stay: one at a time, or those of the whole unit
  // where its backward is one function.
  std::int64_t gradients_of_a_moment(const std::vector<std::int64_t>& parameters) const {
    if (parameters.empty()) return 0;
    const int bytes = plan_.stage == 0 ? plan_.part_bytes : plan_.gather_bytes;
    return bytes * (plan_.activation_checkpointing ? elements(parameters)
                                                   : *std::ranges::max_element(parameters));
  }

  const ModelSizes& model_;
  const MemoryPlan& plan_;
};

/// DistributedDataParallel has all on every rank.
Most most_of_ddp(const ModelSizes& model, const MemoryPlan& plan) {
  std::int64_t all = elements(model.root);
  for (const auto& unit : model.units) all += elements(unit);
  const std::int64_t parameters = all * plan.part_bytes;
  // Buckets are there from the start; gradients come beside them, or in them.
  const std::int64_t buckets = parameters;
  const Activations activations(model, plan);
  Most most;
  std::int64_t gradients = 0;
  for (auto unit = static_cast<std::ptrdiff_t>(model.units.size()); unit >= -1; --unit) {
    const bool is_unit = unit >= 0 && unit < static_cast<std::ptrdiff_t>(model.units.size());
    most.note(parameters, buckets + gradients, activations.at(unit));
    if (plan.gradient_as_bucket_view) continue;
    if (is_unit) gradients += elements(model.units[unit]) * plan.part_bytes;
    if (unit == -1) most.note(parameters, buckets + parameters, model.held_bytes);
  }
  return most;
}

/// Follows the engine of ShardedDataParallel through a step.
class ShardedStep {
 public:
  ShardedStep(const ModelSizes& model, const MemoryPlan& plan)
      : plan_(plan), activations_(model, plan) {
    for (const auto& unit : model.units) layouts_.emplace_back(unit, plan.ranks, plan.replicas);
    if (!model.root.empty()) layouts_.emplace_back(model.root, plan.ranks, plan.replicas);
    units_ = static_cast<std::ptrdiff_t>(model.units.size());
  }

  Most most() {
    gradients_ = 0;
    if (plan_.stage == 1) {
      for (const FlatLayout& each : layouts_) gradients_ += buffer(each);
    }
    forward();
    backward();
    if (plan_.peer_copies) exchange_copies();
    return most_;
  }

 private:
  bool keeps_parts_only() const { return plan_.stage == 3; }
  bool converts() const { return plan_.part_bytes != plan_.gather_bytes; }

  std::int64_t whole(const FlatLayout& unit) const { return unit.length() * plan_.gather_bytes; }
  std::int64_t part(const FlatLayout& unit) const { return unit.shard_length() * plan_.part_bytes; }
  std::int64_t buffer(const FlatLayout& unit) const { return unit.length() * plan_.reduce_bytes; }
  std::int64_t mean(const FlatLayout& unit) const {
    return unit.share_length() * plan_.reduce_bytes + (plan_.adds_on_receipt ? buffer(unit) : 0);
  }
  // A copy of the part while it is sent.
  std::int64_t sent(const FlatLayout& unit) const {
    return keeps_parts_only() && !converts() ? 0 : unit.shard_length() * plan_.gather_bytes;
  }

  // What is there whatever happens.
  std::int64_t resting() const {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < layouts_.size(); ++i) {
      const bool is_root = static_cast<std::ptrdiff_t>(i) == units_;
      const bool stays = !keeps_parts_only() || is_root || !plan_.reshard_after_forward;
      if (stays) bytes += whole(layouts_[i]);
      if (keeps_parts_only() || converts()) bytes += part(layouts_[i]);
      if (plan_.peer_copies) bytes += part(layouts_[i]);
    }
    return bytes;
  }

  // While a unit is used and those after it, in the direction of `step`, are on their way.
  std::int64_t parameters_at(std::ptrdiff_t unit, std::ptrdiff_t step) const {
    const bool backward = step < 0;
    std::int64_t bytes = resting();
    const bool comes_and_goes = keeps_parts_only() && plan_.reshard_after_forward;
    if (backward && !comes_and_goes) return bytes;
    for (std::ptrdiff_t i = 0; i <= plan_.prefetch; ++i) {
      const std::ptrdiff_t at = unit + i * step;
      if (at < 0 || at >= units_) continue;
      if (comes_and_goes) bytes += whole(layouts_[at]);
      if (i > 0) bytes += sent(layouts_[at]);
    }
    return bytes;
  }

  void forward() {
    // Before the first unit only those that are fetched ahead.
    for (std::ptrdiff_t unit = -1; unit < units_; ++unit) {
      most_.note(parameters_at(unit, 1), gradients_, 0);
    }
    most_.note(resting(), gradients_, activations_.at(units_));
  }

  void backward() {
    const bool has_root = static_cast<std::ptrdiff_t>(layouts_.size()) > units_;
    // The layers after the units give the root its first gradients.
    if (has_root && plan_.stage != 1) gradients_ += buffer(layouts_.back());
    for (std::ptrdiff_t unit = units_ - 1; unit >= 0; --unit) {
      if (plan_.stage != 1) gradients_ += buffer(layouts_[unit]);
      most_.note(parameters_at(unit, -1), gradients_, activations_.at(unit));
      start_mean(unit);
      most_.note(parameters_at(unit - 1, -1), gradients_, activations_.at(unit - 1));
    }
    most_.note(resting(), gradients_, activations_.at(-1));
    if (has_root) {
      start_mean(units_);
      most_.note(resting(), gradients_, 0);
    }
  }

  // Every mean has ended, and beside the gradients of the part lie those of the copied one.
  void exchange_copies() {
    std::int64_t parts = 0, buffers = 0;
    for (const FlatLayout& each : layouts_) {
      parts += part(each);
      buffers += buffer(each);
    }
    most_.note(keeps_parts_only() ? 2 * parts : resting(),
               2 * parts + (plan_.stage == 1 ? buffers : 0), 0);
  }

  void start_mean(std::ptrdiff_t unit) {
    if (in_flight_.size() == kMeansInFlight) {
      const FlatLayout& first = layouts_[in_flight_.front()];
      in_flight_.pop_front();
      gradients_ += part(first) - mean(first);
      if (plan_.stage != 1) gradients_ -= buffer(first);
    }
    gradients_ += mean(layouts_[unit]);
    in_flight_.push_back(unit);
  }

  const MemoryPlan& plan_;
  Activations activations_;
  std::vector<FlatLayout> layouts_;  // of the units, then of the root where there is one
  std::ptrdiff_t units_ = 0;
  std::deque<std::ptrdiff_t> in_flight_;
  std::int64_t gradients_ = 0;
  Most most_;
};

std::int64_t optimizer_elements(const ModelSizes& model, const MemoryPlan& plan) {
  std::int64_t count = 0;
  const auto add = [&](const std::vector<std::int64_t>& parameters) {
    if (parameters.empty()) return;
    count += plan.stage == 0 ? elements(parameters)
                             : FlatLayout(parameters, plan.ranks, plan.replicas).shard_length();
  };
  for (const auto& unit : model.units) add(unit);
  add(model.root);
  return plan.stage != 0 && plan.peer_copies ? 2 * count : count;
}

}  // namespace

MemoryByKind predict_memory(const ModelSizes& model, const MemoryPlan& plan) {
  if (plan.stage < 0 || plan.stage > 3) {
    throw InvalidArgument(concat("memory plan: the stage is ", plan.stage, "; there are 0 to 3"));
  }
  if (plan.ranks < 1) {
    throw InvalidArgument(concat("memory plan: ranks are ", plan.ranks, "; it takes one or more"));
  }
  if (plan.stage != 0 && (plan.replicas < 1 || plan.ranks % plan.replicas != 0)) {
    throw InvalidArgument(concat("memory plan: replicas are ", plan.replicas, "; the ranks, ",
                                 plan.ranks, ", must be a multiple of them"));
  }
  if (plan.stage != 0 && plan.peer_copies && (plan.ranks < 2 || plan.replicas != 1)) {
    throw InvalidArgument(concat("memory plan: copies at a neighbour on ", plan.ranks,
                                 " rank(s) with replicas ", plan.replicas,
                                 "; they need two ranks or more, and replicas 1"));
  }
  const Most most = plan.stage == 0 ? most_of_ddp(model, plan) : ShardedStep(model, plan).most();
  MemoryByKind result{.parameters = most.parameters,
                      .gradients = most.gradients,
                      .optimizer = optimizer_elements(model, plan) * plan.optimizer_bytes,
                      .activations = most.activations,
                      .buffers = model.buffer_bytes};
  result.peak = most.peak + result.optimizer + result.buffers;
  return result;
}

std::optional<MemoryPlan> fit_memory(const ModelSizes& model, const MemoryPlan& plan,
                                     std::int64_t limit_bytes) {
  constexpr std::int64_t kMostSamples = 1 << 20;
  for (int stage = plan.stage; stage <= 3; ++stage) {
    MemoryPlan tried = plan;
    tried.stage = stage;
    const auto fits = [&](std::int64_t samples) {
      tried.micro_batch = samples;
      return predict_memory(model, tried).peak <= limit_bytes;
    };
    if (!fits(1)) continue;
    std::int64_t fitting = 1, too_many = 2;
    while (too_many <= kMostSamples && fits(too_many))
      fitting = std::exchange(too_many, 2 * too_many);
    while (fitting + 1 < too_many) {
      const std::int64_t middle = std::midpoint(fitting, too_many);
      (fits(middle) ? fitting : too_many) = middle;
    }
    tried.micro_batch = fitting;
    return tried;
  }
  return std::nullopt;
}

std::string memory_table(const std::vector<MemoryRow>& rows) {
  std::size_t width = 0;
  for (const MemoryRow& row : rows) width = std::max(width, row.name.size());
  const auto cell = [](const std::string& text) {
    return std::string(text.size() < 13 ? 13 - text.size() : 1, ' ') + text;
  };
  std::string table(width, ' ');
  for (const char* kind :
       {"parameters", "gradients", "optimizer", "activations", "buffers", "peak"}) {
    table += cell(kind);
  }
  for (const auto& [name, memory] : rows) {
    table += "\n" + name + std::string(width - name.size(), ' ');
    for (const std::int64_t bytes : {memory.parameters, memory.gradients, memory.optimizer,
                                     memory.activations, memory.buffers, memory.peak}) {
      table += cell(show_bytes(bytes));
    }
  }
  return table + "\n";
}

std::int64_t parse_bytes(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  while (rest != end && *rest == ' ') ++rest;
  const std::string unit(rest, end);
  const std::string letters = "KMGT";
  double factor = unit.empty() || unit == "B" ? 1 : 0;
  if (!unit.empty() && letters.find(unit[0]) != std::string::npos) {
    const auto power = static_cast<double>(letters.find(unit[0]) + 1);
    if (unit.size() == 3 && unit.ends_with("iB")) factor = std::pow(1024.0, power);
    if (unit.size() == 2 && unit.ends_with("B")) factor = std::pow(1000.0, power);
  }
  const double bytes = value * factor;
  if (error != std::errc() || !(bytes >= 1) || bytes > 9e18) {
    throw InvalidArgument(concat("'", text, "' is not a number of bytes; write 24GiB or 512MB"));
  }
  return static_cast<std::int64_t>(bytes);
}

std::string show_bytes(std::int64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

}  // namespace lockstep
