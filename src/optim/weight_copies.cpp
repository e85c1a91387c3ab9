#include "optim/weight_copies.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace lockstep {
namespace {

thread_local KeptCopies* kept_here = nullptr;

struct KnownCopies {
  std::mutex mutex;
  // A copy holds its weight, so no other tensor can have the address while it lives.
  std::unordered_map<const c10::TensorImpl*, std::weak_ptr<WeightCopy>> by_weight;
};

KnownCopies& known_copies() {
  static KnownCopies known;
  return known;
}

}  // namespace

KeptCopies* KeptCopies::current() {
  return kept_here;
}

KeptCopies::Scope::Scope(KeptCopies& kept) : before_(std::exchange(kept_here, &kept)) {}
KeptCopies::Scope::~Scope() {
  kept_here = before_;
}

void announce_copy(const std::shared_ptr<WeightCopy>& copy) {
  KnownCopies& known = known_copies();
  const std::lock_guard lock(known.mutex);
  std::erase_if(known.by_weight, [](const auto& entry) { return entry.second.expired(); });
  known.by_weight[copy->weight.unsafeGetTensorImpl()] = copy;
}

std::shared_ptr<WeightCopy> kept_copy_of(const at::Tensor& weight) {
  if (kept_here == nullptr) return nullptr;
  KnownCopies& known = known_copies();
  const std::lock_guard lock(known.mutex);
  const auto found = known.by_weight.find(weight.unsafeGetTensorImpl());
  return found == known.by_weight.end() ? nullptr : found->second.lock();
}

}  // namespace lockstep
