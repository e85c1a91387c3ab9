#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/peers.h"

namespace lockstep {

/// The list in the store on which ranks tick themselves off before they connect to each other. It
/// tells who has not come, who came twice, and who disagrees about the size of the world.
class Arrival {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    int node_rank = 0;
    std::int64_t epoch = 0;
    c10::intrusive_ptr<c10d::Store> own_store;  // this library's keys
    c10::intrusive_ptr<c10d::Store>
        backend_store;  // where Gloo leaves its addresses, in any language
  };

  explicit Arrival(Options options) : options_(std::move(options)) {}

  /// Throws InvalidArgument for a rank that has already come or a world of another size.
  void check_in();

  /// The same list through connections of its own. A store's client serves one call at a time, and
  /// the one given may be waiting.
  Arrival on_own_connection() const;

  /// Whether every rank, all of this library, has called check_in().
  bool all_checked_in() const;

  /// Ranks that have left no trace.
  std::vector<int> missing() const;

  /// Who the others are, as far as they have said. After the backend has connected to all, every
  /// lockstep rank has.
  std::shared_ptr<const Peers> peers() const;

 private:
  std::string identity_key(int rank) const;

  Options options_;
};

/// Says every ten seconds, on standard error, whom this rank is waiting for.
class ArrivalReporter {
 public:
  ArrivalReporter(const Arrival& arrival, int rank);
  ~ArrivalReporter();

 private:
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep
