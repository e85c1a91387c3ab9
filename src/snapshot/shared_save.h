#pragma once

#include <functional>
#include <span>
#include <string>

#include "archive/snapshot_writer.h"
#include "lockstep/store.h"

namespace lockstep {

/// One save of a snapshot that every rank has files of. The ranks' writers meet through keys of the
/// job's store, beside the training: rank 0 makes the folder and tells its name, all write their
/// files into it and tell lengths and checksums, rank 0 writes the manifest and publishes, and all
/// learn how it went. So a snapshot gets its name when every file is on the disk, or never.
///
/// Whoever is last to be done with the keys deletes them. Those of a save in which a rank dies stay
/// in the store, a handful.
class SharedSave {
 public:
  struct Meeting {
    Store store;       // whose calls do not wait for other threads' (Store::clone())
    Store served;      // the world's, whose server lives as long as this rank's handles of it
    std::string keys;  // what the keys begin with; of this save alone
    int rank = 0;
    int ranks = 1;
    std::function<bool()> healthy;  // false: a rank is lost, so nobody is waited for
  };
  explicit SharedSave(Meeting meeting) : meeting_(std::move(meeting)) {}

  /// Returns when the snapshot is published. Throws Error, on every rank, when any rank has failed;
  /// nothing is left then.
  void write(const std::string& directory, Manifest manifest, std::span<const SnapshotFile> files,
             const WriteOptions& options) const;

  /// Instead of write(): tells the others that this rank has nothing to write, and why.
  void give_up(const std::string& reason) const;

 private:
  void write_share(const std::string& directory, Manifest manifest,
                   std::span<const SnapshotFile> files, const WriteOptions& options) const;
  std::string await(const std::string& key) const;
  void tell_failure(const std::string& reason) const;
  void leave() const noexcept;
  std::string key(const std::string& name) const { return meeting_.keys + name; }
  void publish(const std::string& directory, const std::string& folder, Manifest manifest,
               const WriteOptions& options) const;

  Meeting meeting_;
};

}  // namespace lockstep
