#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/group_team.h"

namespace lockstep {

/// Messages of tensors between two ranks of a machine, through the mail of their group.
namespace shm_message {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Envelope {
  int peer = 0;  // of the group; ShmMail::kAnyone where all of it is on one machine
  int tag = 0;
  std::chrono::milliseconds timeout{};  // of waiting
};

// One tensor each. Throw InvalidArgument for tensors that do not lie in this machine's memory.
WorkPtr send(const std::shared_ptr<GroupTeam>& team, const Tensors& tensors,
             const Envelope& envelope);
WorkPtr receive(const std::shared_ptr<GroupTeam>& team, const Tensors& tensors,
                const Envelope& envelope);

}  // namespace shm_message
}  // namespace lockstep
