#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster/head_plan.h"
#include "cluster/starter.h"
#include "core/unique_fd.h"
#include "doctor/finding.h"

namespace lockstep {

/// The doctors that are started on other machines, by ssh, srun or pbsdsh.
class RemoteDoctors {
 public:
  /// Starts all of them; each is told where the desk is.
  RemoteDoctors(EventLoop& loop, const HeadPlan& plan,
                const std::vector<std::vector<Endpoint>>& endpoints);

  /// How many have ended without coming to the desk, where `here` are.
  std::size_t failed(const std::set<std::string>& here) const;

  /// What is to be said about those, and about those that were started and have not come.
  Findings absences(const std::set<std::string>& here, std::chrono::milliseconds limit) const;

  /// Waits until all have ended by themselves, for a while; the others are killed.
  void wait();

 private:
  struct Remote {
    HeadNode node;
    UniqueFd errors;  // memory that holds what it wrote to standard error
    std::unique_ptr<Starter> starter;
    bool ended = false;
    ExitStatus status;
    std::string refused;  // why it could not even be tried
  };

  void start(Remote& remote);
  std::size_t ended() const;

  EventLoop& loop_;
  std::vector<std::unique_ptr<Remote>> remotes_;
};

}  // namespace lockstep
