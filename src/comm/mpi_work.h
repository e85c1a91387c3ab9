#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep {

/// An operation of backend mpi, which may be several of MPI's.
class MpiWork : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs,
          std::uint64_t sequence, std::size_t parts)
      : Work(rank, type, title),
        outputs_(std::move(outputs)),
        sequence_(sequence),
        parts_(parts),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {}

  // On the thread that calls MPI.
  void part_done(const std::function<void()>& finish_part, int source) {
    source_ = source;
    try {
      const at::NoGradGuard no_grad;
      if (finish_part) finish_part();
    } catch (...) {
      return fail(std::current_exception());
    }
    if (--parts_ == 0) succeed();
  }
  void fail(const std::exception_ptr& error) {
    if (std::exchange(failed_, true)) return;
    parts_ = std::numeric_limits<std::size_t>::max();
    finish(error);  // first: callbacks of the future may wait for this work
    future_->setError(error);
  }
  void succeed() {
    finish();
    future_->markCompleted(c10::IValue(outputs_));
  }

  int sourceRank() const override { return source_; }
  std::vector<at::Tensor> result() override { return outputs_; }
  uint64_t getSequencenumber() const override { return sequence_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> outputs_;
  std::uint64_t sequence_;
  std::size_t parts_;
  bool failed_ = false;
  int source_ = -1;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace lockstep
