#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shm/shared_segment.h"
#include "shm/team.h"

namespace lockstep::testing {

/// A team whose ranks are threads of one process, with one mapping of the segment, so that a thread
/// sanitizer sees that they share it.
class TeamOfThreads {
 public:
  explicit TeamOfThreads(int size, std::chrono::milliseconds timeout = std::chrono::seconds(30),
                         std::function<bool()> peer_ended = nullptr) {
    const auto segment =
        std::make_shared<const SharedSegment>(SharedSegment::create(ShmTeam::bytes_needed(size)));
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<ShmTeam>(
          segment, ShmTeam::Options{
                       .rank = rank, .size = size, .timeout = timeout, .peer_ended = peer_ended}));
    }
  }

  ShmTeam& rank(int number) { return *ranks_[static_cast<std::size_t>(number)]; }

  /// Runs the body as every rank; returns what each threw, or nothing.
  std::vector<std::string> run(const std::function<void(ShmTeam&)>& body) {
    std::vector<std::string> errors(ranks_.size());
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(*ranks_[rank]);
        } catch (const std::exception& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return errors;
  }

 private:
  std::vector<std::unique_ptr<ShmTeam>> ranks_;
};

}  // namespace lockstep::testing
