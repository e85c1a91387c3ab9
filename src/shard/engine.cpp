#include "shard/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include <c10/core/GradMode.h>
#include <torch/csrc/api/include/torch/nn/module.h>

#include "lockstep/deferred.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostInFlight = 2;  // means whose gradients are kept

// Whether a name is meant by a pattern in which "*" stands for one name between dots.
bool name_matches(const std::string& pattern, const std::string& name) {
  std::size_t p = 0, n = 0;
  while (true) {
    const std::size_t pattern_end = std::min(pattern.find('.', p), pattern.size());
    const std::size_t name_end = std::min(name.find('.', n), name.size());
    const std::string wanted = pattern.substr(p, pattern_end - p);
    if (wanted != "*" && wanted != name.substr(n, name_end - n)) return false;
    const bool last = pattern_end == pattern.size();
    if (last || name_end == name.size()) return last && name_end == name.size();
    p = pattern_end + 1;
    n = name_end + 1;
  }
}

struct FoundUnit {
  std::string name;
  const torch::nn::Module* module = nullptr;
};

std::vector<FoundUnit> find_units(const torch::nn::Module& module,
                                  const std::vector<std::string>& patterns) {
  std::vector<FoundUnit> found;
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (const auto& each : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
      if (!name_matches(pattern, each.key())) continue;
      any = true;
      found.push_back({.name = each.key(), .module = each.value().get()});
    }
    if (!any) {
      throw InvalidArgument(concat("ShardedDataParallel: units has '", pattern,
                                   "', and no module of the model has such a name"));
    }
  }
  for (const FoundUnit& one : found) {
    for (const FoundUnit& other : found) {
      if (&one != &other && (one.name == other.name || one.name.starts_with(other.name + "."))) {
        throw InvalidArgument(concat("ShardedDataParallel: the unit '", one.name, "' is within '",
                                     other.name, "'; a parameter has one unit"));
      }
    }
  }
  return found;
}

void check_type(const char* name, std::optional<at::ScalarType> type) {
  if (!type || *type == at::kFloat || *type == at::kDouble || *type == at::kBFloat16 ||
      *type == at::kHalf) {
    return;
  }
  throw InvalidArgument(concat("ShardedDataParallel: ", name, " is ", c10::toString(*type),
                               "; it must be float32, float64, bfloat16 or float16"));
}

// What every unit needs: one type, one device, memory without gaps.
void check_unit(const std::string& name, const std::vector<WalkedTensor>& parameters) {
  const at::Tensor& first = parameters.front().tensor;
  for (const WalkedTensor& each : parameters) {
    const bool alike =
        each.tensor.scalar_type() == first.scalar_type() && each.tensor.device() == first.device();
    if (alike && !each.sparse_gradient) continue;
    throw InvalidArgument(
        concat("ShardedDataParallel: parameter '", each.name, "' of unit '", name, "' is ",
               each.sparse_gradient ? "one with sparse gradients"
                                    : concat(each.tensor.toString(), ", and '",
                                             parameters.front().name, "' is ", first.toString()),
               "; a unit's parameters are of one type, on one device, with dense gradients"));
  }
}

}  // namespace

ShardedEngine::Impl::Impl(const MakeExchange& make_exchange,
                          std::shared_ptr<torch::nn::Module> given,
                          const ShardedOptions& given_options)
    : module(std::move(given)), options(given_options) {
  if (options.prefetch < 0) {
    throw InvalidArgument(
        concat("ShardedDataParallel: prefetch is ", options.prefetch, "; it must be at least 0"));
  }
  check_type("gather_type", options.gather_type);
  check_type("reduce_type", options.reduce_type);
  std::vector<WalkedTensor> trained = walk_parameters(*module, {});
  std::erase_if(trained, [](const WalkedTensor& each) { return !each.tensor.requires_grad(); });
  if (trained.empty()) {
    throw InvalidArgument(concat("ShardedDataParallel: ", module_name(*module),
                                 " has no parameter that requires a gradient"));
  }
  const bool deferred = trained.front().tensor.is_meta();
  const auto* source = dynamic_cast<const DeferredModule*>(module.get());
  if (deferred && source == nullptr) {
    throw InvalidArgument(concat("ShardedDataParallel: the parameters of ", module_name(*module),
                                 " are on the meta device, and it is no DeferredModule, which "
                                 "could make them"));
  }
  exchange = make_exchange(deferred ? options.device : trained.front().tensor.device());

  const std::vector<FoundUnit> found = find_units(*module, options.units);
  std::vector<std::vector<WalkedTensor>> parts(found.size() + 1);  // the root last
  for (WalkedTensor& each : trained) {
    std::size_t at = 0;
    while (at < found.size() && !each.name.starts_with(found[at].name + ".")) ++at;
    parts[at].push_back(std::move(each));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string name = i < found.size() ? found[i].name : "";
    if (i < found.size()) by_module[found[i].module] = units.size();
    if (parts[i].empty()) {
      if (i < found.size()) {
        throw InvalidArgument(concat("ShardedDataParallel: unit '", name,
                                     "' has no parameter of its own that requires a gradient"));
      }
      units.push_back(nullptr);
      continue;
    }
    check_unit(name, parts[i]);
    units.push_back(std::make_unique<FlatUnit>(name, std::move(parts[i]), *exchange, options));
  }
  for (const auto& unit : units) {
    if (unit) pieces.insert(pieces.end(), unit->pieces().begin(), unit->pieces().end());
  }
  ready.assign(units.size(), false);
  note_memory();
  if (deferred) make_parameters(*source);
}

void ShardedEngine::Impl::keep_copy(int distance) {
  if (distance < 1 || distance >= exchange->ranks()) {
    throw InvalidArgument(concat("ShardedDataParallel: a copy cannot be kept at distance ",
                                 distance, " among ", exchange->ranks(), " ranks"));
  }
  copy = std::make_unique<PartCopy>(units, *exchange, distance);
  note_memory();
}

ShardedEngine::Impl::~Impl() {
  for (const auto& call : unwatch) call();
}

std::size_t ShardedEngine::Impl::index_of(const torch::nn::Module& unit) const {
  const auto found = by_module.find(&unit);
  return found == by_module.end() ? units.size() : found->second;
}

void ShardedEngine::Impl::begin_forward() {
  if (in_backward) forget_backward();  // one that was not finished: an exception ended it
  passed.clear();
  for (std::size_t i = 0; i < units.size(); ++i) {
    // The root, and what is named as a unit but was not marked: nobody will say when it is used.
    const bool unmarked = std::ranges::find(order, i) == order.end();
    const bool stays = options.stage != ShardStage::parameters;
    if (units[i] && (i == root() || (unmarked && stays))) units[i]->await();
  }
  const auto ahead = std::min<std::size_t>(order.size(), options.prefetch);
  for (std::size_t i = 0; i < ahead; ++i) units[order[i]]->fetch();
  note_memory();
  outer = set_current(this);  // last: what is above may throw, and then nobody leaves this forward
}

// Units are fetched in the order of the last forward; the first one fetches without looking ahead.
void ShardedEngine::Impl::fetch_next(std::size_t unit, bool forward) {
  const auto here = std::ranges::find(order, unit);
  if (here == order.end()) return;
  const std::ptrdiff_t at = here - order.begin();
  for (int i = 1; i <= options.prefetch; ++i) {
    const std::ptrdiff_t next = forward ? at + i : at - i;
    if (next < 0 || next >= static_cast<std::ptrdiff_t>(order.size())) return;
    units[order[next]]->fetch();
  }
}

at::Tensor ShardedEngine::Impl::enter(const torch::nn::Module& given, const at::Tensor& x) {
  const std::size_t unit = index_of(given);
  if (unit == units.size()) return x;  // marked, but not made a unit
  passed.push_back(unit);
  units[unit]->await();
  fetch_next(unit, /*forward=*/true);
  note_memory();
  return x;
}

bool ShardedEngine::Impl::gather_all() {
  if (options.stage == ShardStage::parameters) return false;
  // As if all had been passed: their gradients leave in the opposite order, as those of a rank that
  // passes marks.
  passed.clear();
  for (std::size_t i = 0; i < root(); ++i) passed.push_back(i);
  for (const auto& unit : units) {
    if (unit) unit->fetch();
  }
  for (const auto& unit : units) {
    if (unit) unit->await();
  }
  note_memory();
  return true;
}

// PyTorch only says that a storage is too small.
void ShardedEngine::Impl::say_what_was_not_passed() {
  if (options.stage != ShardStage::parameters || has_passed) return;
  std::string names;
  for (std::size_t i = 0; i < root(); ++i) {
    if (std::ranges::find(passed, i) == passed.end()) names += concat(" '", units[i]->name(), "'");
  }
  if (names.empty()) return;
  std::fprintf(stderr,
               "lockstep: ShardedDataParallel: the first forward failed before it passed%s; the "
               "parameters of a unit are there only between the marks of lockstep::unit()\n",
               names.c_str());
}

void ShardedEngine::Impl::leave_forward() {
  set_current(outer);
  outer = nullptr;
  order = passed;
}

void ShardedEngine::Impl::before_backward_of(std::size_t unit) {
  begin_backward();
  units[unit]->await();
  fetch_next(unit, /*forward=*/false);
  note_memory();
}

void ShardedEngine::Impl::on_gradient(std::size_t unit, std::size_t parameter) {
  begin_backward();
  if (!units[unit]->note_gradient(parameter, requires_sync)) return;
  note_memory();
  if (unit != root()) units[unit]->release();
  ready[unit] = true;
  if (requires_sync) reduce_what_is_ready();
}

// In one order on all ranks, however their backwards run.
void ShardedEngine::Impl::reduce_what_is_ready() {
  while (next_to_reduce < reduce_order.size() && ready[reduce_order[next_to_reduce]]) {
    if (reducing.size() == kMostInFlight) {
      units[reducing.front()]->finish_mean();
      reducing.pop_front();
    }
    const std::size_t unit = reduce_order[next_to_reduce++];
    units[unit]->start_mean();
    reducing.push_back(unit);
    note_memory();
  }
}

void ShardedEngine::Impl::end_backward() {
  if (!in_backward) return;
  if (requires_sync) {
    ready.assign(ready.size(), true);
    reduce_what_is_ready();
    for (const std::size_t unit : reducing) units[unit]->finish_mean();
  }
  for (const auto& unit : units) {
    if (!unit) continue;
    if (requires_sync) {
      unit->outdate();
    } else {
      unit->release();
    }
  }
  forget_backward();
}

void ShardedEngine::Impl::forget_backward() {
  in_backward = false;
  reducing.clear();
  next_to_reduce = 0;
  ready.assign(ready.size(), false);
  for (const auto& unit : units) {
    if (unit) unit->forget_backward();
  }
}

ShardedMemory ShardedEngine::Impl::memory_now() const {
  ShardedMemory now = most;
  now.parameters = now.gradients = 0;
  for (const auto& unit : units) {
    if (!unit) continue;
    now.parameters += unit->parameter_bytes();
    now.gradients += unit->gradient_bytes();
  }
  if (copy) {
    now.parameters += copy->parameter_bytes();
    now.gradients += copy->gradient_bytes();
  }
  return now;
}

void ShardedEngine::Impl::note_memory() {
  const ShardedMemory now = memory_now();
  most.most_parameters = std::max(most.most_parameters, now.parameters);
  most.most_gradients = std::max(most.most_gradients, now.gradients);
}

ShardedEngine::ShardedEngine(const ProcessGroup& group, std::shared_ptr<torch::nn::Module> module,
                             const ShardedOptions& options)
    : impl_(std::make_shared<Impl>(
          [&](c10::Device device) {
            if (options.replicas != 1) {
              throw InvalidArgument(concat("ShardedDataParallel: replicas is ", options.replicas,
                                           ", which needs groups of the world; give it the World"));
            }
            check_peer_copies(options, group.size());
            return std::make_unique<ShardExchange>(group, device);
          },
          std::move(module), options)) {
  if (options.peer_copies) impl_->keep_copy(distance_apart(machines_of(group)));
  impl_->watch_gradients();
}
ShardedEngine::ShardedEngine(World& world, std::shared_ptr<torch::nn::Module> module,
                             const ShardedOptions& options)
    : impl_(std::make_shared<Impl>(
          [&](c10::Device device) {
            check_peer_copies(options, world.world_size());
            return std::make_unique<ShardExchange>(world, device, options.replicas);
          },
          std::move(module), options)) {
  // A replacement may be on another machine than the one that it replaces: it is told by the others
  // what they have found when the run began.
  if (options.peer_copies && !world.joins()) {
    impl_->keep_copy(distance_apart(machines_of(world.group())));
  }
  impl_->watch_gradients();
}
ShardedEngine::ShardedEngine(ShardedEngine&&) noexcept = default;
ShardedEngine::~ShardedEngine() = default;

void ShardedEngine::before_forward() {
  impl_->begin_forward();
}
void ShardedEngine::after_forward(const std::vector<at::Tensor*>& outputs) {
  impl_->end_forward(outputs);
}
void ShardedEngine::abandon_forward() {
  impl_->say_what_was_not_passed();
  impl_->leave_forward();
}

PartCopy& ShardedEngine::Impl::kept_copy() const {
  if (!copy) {
    throw InvalidArgument(
        "ShardedDataParallel: no copy of another part is kept here; set "
        "ShardedOptions::peer_copies");
  }
  return *copy;
}

const std::vector<NamedParameter>& ShardedEngine::parameters(ShardPart part) const {
  return part == ShardPart::own ? impl_->pieces : impl_->kept_copy().pieces();
}

// Whole parameters keep their shapes also while their memory is given up.
std::vector<ParamGroup> ShardedEngine::decay_groups(double weight_decay) const {
  return parts_of(lockstep::decay_groups(*impl_->module, weight_decay));
}

void ShardedEngine::zero_grad() {
  if (impl_->copy) impl_->copy->drop_gradients();
  for (const auto& unit : impl_->units) {
    if (unit) unit->zero_grad();
  }
  for (at::Tensor& parameter : impl_->module->parameters()) {
    parameter.mutable_grad() = at::Tensor();
  }
}

at::Tensor ShardedEngine::clip_grad_norm(const ClipGradOptions& options) {
  const c10::AutoGradMode no_graph(false);
  const std::vector<NamedParameter>& pieces = impl_->pieces;
  if (options.scale != 1.0 || options.scale_tensor.defined()) {
    scale_gradients(pieces, options.scale, options.scale_tensor);
  }
  const bool largest = std::isinf(options.norm_type);
  at::Tensor norm = grad_norm(pieces, options.norm_type).to(at::kFloat);
  if (!largest) norm = norm.pow(options.norm_type);
  const c10::Device home = norm.device();
  norm = norm.reshape({1}).contiguous().to(impl_->exchange->device());
  // Added here, by part: all copies get the same bits, however their ranks are connected.
  const at::Tensor norms = impl_->exchange->gather_number(norm);
  norm = largest ? norms.amax(0, /*keepdim=*/true) : norms.sum(0, /*keepdim=*/true);
  if (!largest) norm = norm.pow(1 / options.norm_type);
  norm = norm.reshape({}).to(home);
  if (options.error_if_nonfinite && !std::isfinite(norm.item<double>())) {
    const std::string name = non_finite_gradient(pieces).value_or("");
    throw NonFiniteGradient(
        concat("clip_grad_norm: the norm of the gradients is ", norm.item<double>(),
               name.empty() ? ", by another rank's part" : concat("; the first such is ", name)),
        name);
  }
  scale_gradients(pieces, 1.0, (options.max_norm / (norm + 1e-6)).clamp_max(1.0));
  return norm;
}

void ShardedEngine::with_whole_parameters(const std::function<void()>& call) {
  for (const auto& unit : impl_->units) {
    if (unit) unit->show();
  }
  struct Hide {
    Impl& impl;
    ~Hide() {
      for (const auto& unit : impl.units) {
        if (unit) unit->hide();
      }
    }
  } hide{*impl_};
  call();
}

int ShardedEngine::copy_distance() const {
  return impl_->copy ? impl_->copy->places().distance : 0;
}
void ShardedEngine::keep_copy(int distance) {
  impl_->keep_copy(distance);
}
void ShardedEngine::load_copy(const State& state) {
  impl_->kept_copy().load(state);
}
void ShardedEngine::exchange_copy_gradients() {
  impl_->kept_copy().exchange_gradients();
  impl_->note_memory();
}
void ShardedEngine::drop_copy_gradients() {
  impl_->kept_copy().drop_gradients();
}

ShardedMemory ShardedEngine::memory() const {
  return impl_->memory_now();
}

ShardedTraffic ShardedEngine::traffic() const {
  return impl_->exchange->traffic();
}

bool ShardedEngine::requires_sync() const {
  return impl_->requires_sync;
}
void ShardedEngine::set_requires_sync(bool value) {
  impl_->requires_sync = value;
}

}  // namespace lockstep
