#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// A parameter's copy in another type that a model computes with, such as bfloat16.
struct WeightCopy {
  at::Tensor weight;
  at::Tensor copy;
  std::int64_t version = -1;  // of the weight, when the copy was made
  bool is_written = false;    // by the optimizer, last time; then it will be each time

  bool is_current() const { return version == static_cast<std::int64_t>(weight._version()); }
  void mark_current() { version = static_cast<std::int64_t>(weight._version()); }
};

/// While a graph is recorded (and in the steps before it), optimizers write the copies as they
/// change the weights, which saves a pass over all of them in the graph. Elsewhere models make
/// their copies in every forward: a version does not tell of what is written through
/// Tensor::data().
///
/// The graph's owner holds one of these and calls before_replay(): what was changed since by
/// others, a snapshot that was loaded for one, is copied then.
///
/// Thread rule: one thread.
class KeptCopies {
 public:
  /// The one that counts on this thread, or null.
  static KeptCopies* current();

  /// For a model that relies on its copies in the graph: `refresh` makes them current.
  void rely_on(std::function<void()> refresh) { refreshes_.push_back(std::move(refresh)); }
  void before_replay() const {
    for (const auto& refresh : refreshes_) refresh();
  }

  /// While it lives, optimizers and models of this thread keep copies current for `kept`.
  class Scope {
   public:
    explicit Scope(KeptCopies& kept);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    KeptCopies* before_;
  };

 private:
  std::vector<std::function<void()>> refreshes_;
};

/// Makes a copy known to optimizers, as long as it lives.
void announce_copy(const std::shared_ptr<WeightCopy>& copy);

/// The copy of a weight that an optimizer is to write; null where there is none, or where none is
/// kept.
std::shared_ptr<WeightCopy> kept_copy_of(const at::Tensor& weight);

}  // namespace lockstep
