#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace lockstep {

/// Tags from here on belong to the library; users' tags are smaller.
inline constexpr int kFirstReservedTag = 1 << 30;
inline constexpr int kAllToAllTag = kFirstReservedTag;
inline constexpr int kShmFormationTag = kFirstReservedTag + 1;
// What the leaders of a team's machines tell each other before a call.
inline constexpr int kBackendTeamTag = kFirstReservedTag + 2;
inline constexpr int kOrderedTeamTag = kFirstReservedTag + 4;
inline constexpr int kSharedTensorTag = kFirstReservedTag + 6;
inline constexpr int kFirstReductionTag = kFirstReservedTag + 7;
// Nobody receives them: they ask Gloo about a connection. As many as there may be interfaces.
inline constexpr int kFirstProbeTag = kFirstReservedTag + (1 << 29) - (1 << 10);
// From here on each call of a team has tags by what it does, so that those of ranks which call
// different things never meet.
inline constexpr int kFirstTeamCallTag = kFirstReservedTag + (1 << 29);

/// Point-to-point messages that were started together. Messages between two ranks with one tag
/// arrive in the order in which they were started.
class Messages {
 public:
  Messages(c10::intrusive_ptr<c10d::Backend> backend, int tag)
      : backend_(std::move(backend)), tag_(tag) {}

  void send(const at::Tensor& tensor, int peer) {
    std::vector<at::Tensor> tensors{tensor};
    works_.push_back(backend_->send(tensors, peer, tag_));
  }

  void receive(const at::Tensor& tensor, int peer) {
    std::vector<at::Tensor> tensors{tensor};
    works_.push_back(backend_->recv(tensors, peer, tag_));
  }

  void wait() {
    for (auto& work : works_) work->wait();
    works_.clear();
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  int tag_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace lockstep
