#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/process_group.h"
#include "lockstep/store.h"

namespace c10 {
struct Device;
}

namespace lockstep {

struct InitOptions {
  /// Where the ranks meet: "env://" (variables of torchrun, Slurm, Open MPI or PMI),
  /// "tcp://host:port" or "file:///path". Rank and world size come from the fields below, from
  /// ?rank=R&world_size=N, or, with env://, from the environment.
  std::string init_method = "env://";
  std::optional<Store> store;  // instead of init_method; rank and world_size are then needed
  std::optional<int> rank;
  std::optional<int> world_size;

  /// "auto", "gloo", "shm", "hybrid", "nccl", "cpu:gloo,cuda:nccl"; empty: what LOCKSTEP_BACKEND
  /// names, or else nccl for a CUDA device and auto for the CPU.
  /// auto moves CPU tensors through memory that ranks of a machine share: it becomes shm if all are
  /// on one machine, hybrid if some of them share one, and gloo otherwise. shm and hybrid ask for
  /// the same by name: where it cannot be had, rank 0 says why.
  std::string backend;
  /// "cpu", "cuda", "cuda:1"; empty: CUDA device number local_rank where there are any and the
  /// library was built for them, otherwise the CPU.
  std::string device;

  std::chrono::milliseconds timeout{std::chrono::minutes(30)};            // of an operation
  std::chrono::milliseconds rendezvous_timeout{std::chrono::minutes(5)};  // of meeting

  /// Number of the membership. Worlds of one job that follow each other on the same store have
  /// different ones, so that nothing of the old world is taken for the new. 0 uses Python's key
  /// names, so that Python ranks can take part. Unset: how many worlds this process has formed at
  /// this place before, which is the same on every rank as long as no rank was replaced.
  std::optional<std::int64_t> epoch;
};

struct NewGroupOptions {
  std::vector<int> ranks;                // of the world
  std::chrono::milliseconds timeout{0};  // 0: the world's
  std::string backend = {};              // as in InitOptions; empty: the world's
};

/// This process's place among all processes of a job, and the way to reach them.
///
/// A recovery (docs/recovery.md) may leave the world with fewer processes, or with more again:
/// rank, world size and local world size are then others than before. What a program makes of them,
/// it makes anew. The local rank, which chooses the device, stays; it then has gaps on its node.
///
/// Made by init(). Destroying it closes all connections; a process may then make another one.
/// Move-only. One thread uses a World; abort() may be called from any thread.
class World {
 public:
  class Impl;
  explicit World(std::unique_ptr<Impl> impl);
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  int rank() const;
  int world_size() const;
  int local_rank() const;
  int local_world_size() const;
  int node_rank() const;
  c10::Device device() const;
  std::int64_t epoch() const;
  Store& store();

  /// Whether this process takes the place of one that died, while the others wait with their state
  /// (docs/recovery.md). True from init() until Trainer::fit() has taken over that state. Until
  /// then a program calls no collective; rank0_first() runs its function without waiting.
  bool joins() const;

  /// The group of all ranks.
  ProcessGroup& group();

  /// Makes a group of some ranks. Every rank of the world calls it, in the same order, with the
  /// same ranks; those left out get a handle that is not a member.
  ProcessGroup new_group(const NewGroupOptions& options);

  void barrier() { group().barrier(); }
  void monitored_barrier(const MonitoredBarrierOptions& options = {}) {
    group().monitored_barrier(options);
  }

  /// Tells `lockstep run` where the program is: a step and a word such as "train" or "save". Cheap
  /// enough for every step; without such a launcher nothing happens.
  void report(std::int64_t step, std::string_view phase);

  /// Whether the launcher has asked the program to stop, before the signal that follows, and how
  /// much time it leaves; std::nullopt unless it has. Thread-safe.
  bool stop_requested() const;
  std::optional<std::chrono::milliseconds> stop_deadline() const;

  /// ProcessGroup::abort() on every group of this world. Thread-safe.
  void abort();

  /// Leaves the world: closes the connections and gives the store back. Called by the destructor;
  /// calling it again does nothing.
  void destroy();

  /// For other layers of the library.
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Meets the other ranks. Returns when all are connected.
///
/// Throws InvalidArgument for contradicting options or environment (rank outside the world, ranks
/// that disagree about the world's size, two processes with one rank, a port in use), and Timeout
/// naming the ranks that did not arrive.
World init(const InitOptions& options = {});

}  // namespace lockstep
