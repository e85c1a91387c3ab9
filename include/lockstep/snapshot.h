#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/state.h"
#include "lockstep/tensor_range.h"

namespace lockstep {

class World;

/// Everything a run needs to go on from a step.
struct Snapshot {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // of the membership that saves
  int slots = 1;
  std::uint64_t seed = 0;
  /// "model", "optimizer", "trainer", ...: each becomes a file of tensors with that name, so names
  /// are made of letters, digits, '-' and '_'.
  std::map<std::string, State> parts = {};
};

struct SnapshotStoreOptions {
  std::string directory;
  int keep_last = 3;       // older ones are removed, except the best; 0: keep all
  bool background = true;  // false: save() returns when everything is on the disk
  /// The first rank of each node writes into its own `directory`, for nodes without a shared disk.
  bool per_node = false;
  /// States in parts are going to be saved (lockstep/tensor_range.h): each rank's writer connects
  /// to the store now, while all ranks are there, and not in its first save.
  bool in_parts = false;
  /// Gets one line for each thing that goes wrong or is skipped; never a line break in it. Called
  /// on the rank that has something to say, from any thread. Default: stderr.
  std::function<void(const std::string&)> report = nullptr;
};

struct SaveOptions {
  bool best = false;  // keep it until a better one comes
};

/// The snapshots of a run: a directory with `step_<N>/` for each, and the links `latest` and
/// `best`. docs/snapshots.md describes the files.
///
/// Every rank makes one and calls the same functions in the same order. Where it says "collective",
/// the call waits for the other ranks.
///
/// Only one job at a time writes into a directory.
///
/// Thread rule: one thread calls; writing happens in a thread of its own.
class SnapshotStore {
 public:
  /// Collective. `world` must outlive the store. Throws InvalidArgument, on every rank, for bad
  /// options and when another job writes into the directory (the message names its host and
  /// process). A directory that cannot be written to is reported, and so is each save then.
  SnapshotStore(World& world, const SnapshotStoreOptions& options);

  /// Waits for what is being written.
  ~SnapshotStore();

  SnapshotStore(const SnapshotStore&) = delete;
  SnapshotStore& operator=(const SnapshotStore&) = delete;

  /// Collective: those who have a store call it while ranks that replace others make theirs, in a
  /// world that has been formed again. What is being written goes on.
  void readmit();

  /// Whether this rank writes: rank 0, or with `per_node` the first rank of each node. The others'
  /// save() does nothing, and what they pass may be empty.
  bool writes() const;

  /// Copies everything into memory kept for it and returns; a thread then writes. While the save
  /// before is still being written, it waits for that first, so that there is one copy and no save
  /// is lost. Where there is not enough memory for the copy, it says so and returns when all is
  /// written.
  ///
  /// A save that fails is reported, never thrown, and costs no snapshot that was there before.
  ///
  /// Where a part is a state in parts (lockstep/tensor_range.h, ShardedEngine::state()), every rank
  /// writes a file of its own, into one directory that all ranks must see; the snapshot is there
  /// when all files are. Of other parts rank 0 writes what it was given.
  void save(const Snapshot& snapshot, const SaveOptions& options = {});

  /// Gets the memory for copies of something as large as `snapshot` now, in the background:
  /// otherwise the first save waits for fresh pages.
  void reserve(const Snapshot& snapshot);

  /// Returns when what was saved is on the disk or has failed.
  void wait();

  /// The step of the last snapshot that this rank has brought to the disk.
  std::optional<std::int64_t> last_saved() const;

  /// Why the last save failed; empty when it did not, or is not finished.
  std::string last_error() const;

  /// Collective. The newest snapshot that is intact, the same on every rank: ranks agree on it, the
  /// lowest one that has it reads it and sends it to the others, so no shared disk is needed. Each
  /// newer one that cannot be used is reported. std::nullopt when there is none.
  ///
  /// Tensors are on the CPU, in memory of their own.
  std::optional<Snapshot> load_newest();

  /// Collective. As above for ranks that hold parts of a model (ShardedEngine::ranges()), of any
  /// snapshot: of each tensor in `ranges`, and of those that an optimizer names after it, this rank
  /// reads what it holds, as a tensor of one dimension; of those it holds nothing of, nothing. All
  /// ranks must see the directory. Throws InvalidArgument, on every rank, for another model.
  std::optional<Snapshot> load_newest(const TensorRanges& ranges);

  /// Collective. What save() last marked as best. std::nullopt when there is none, or, after a
  /// report, when it is damaged.
  std::optional<Snapshot> load_best();

  /// Collective. As above, for one step.
  std::optional<Snapshot> load_step(std::int64_t step);

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Reads one snapshot, of this process alone: the path of a `step_<N>` folder, of `latest`, or of a
/// directory of snapshots, of which it takes the newest. Throws InvalidArgument when it is damaged
/// and SystemError when it cannot be read. Of one that ranks have written in parts the tensors are
/// whole.
Snapshot read_snapshot(const std::string& path);

}  // namespace lockstep
