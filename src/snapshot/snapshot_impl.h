#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "archive/directory_lock.h"
#include "lockstep/snapshot.h"
#include "snapshot/background_writer.h"
#include "snapshot/shared_save.h"
#include "snapshot/staging.h"

namespace lockstep {

class SnapshotStore::Impl {
 public:
  Impl(World& world, const SnapshotStoreOptions& options);
  ~Impl() { writer_.wait(); }

  void readmit();
  bool writes() const { return writes_; }
  void save(const Snapshot& snapshot, const SaveOptions& options);
  void reserve(const Snapshot& snapshot);
  void wait() { writer_.wait(); }
  std::optional<std::int64_t> last_saved() const;
  std::string last_error() const;

  World& world() { return world_; }
  /// Whether the ranks can still talk; asked from the writer's thread.
  std::function<bool()> health() const;
  bool is_first_on_node() const;
  const std::string& directory() const { return options_.directory; }
  void report(const std::string& line) const;

 private:
  struct Job;

  void share_duties(bool again);
  void lock(std::chrono::milliseconds patience);
  bool is_locked_by_another() const {
    return lock_ && lock_->outcome == DirectoryLock::Outcome::taken;
  }
  void compare_locks(bool again);
  void tidy_directory();
  void agree_on_sequence();
  void write(const Job& job);
  SharedSave share_save(const Store& store) const;
  const Store& writers_store();
  void note_failure(std::int64_t step, const std::string& reason);

  World& world_;
  SnapshotStoreOptions options_;
  bool writes_ = false;
  std::string cannot_write_;            // why, if this rank should write and cannot
  std::optional<DirectoryLock> lock_;   // of a rank that is to write
  std::int64_t sequence_ = 0;           // of the last save() of all ranks
  std::string token_;                   // of this store, on all ranks; no other store has it
  std::optional<Store> writers_store_;  // see writers_store()

  mutable std::mutex mutex_;
  std::optional<std::int64_t> last_saved_;  // under mutex_
  std::string last_error_;                  // under mutex_

  Staging staging_;          // touched by the writer while it is busy, otherwise by the caller
  BackgroundWriter writer_;  // last: ends first
};

}  // namespace lockstep
