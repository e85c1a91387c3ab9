#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "archive/manifest.h"

namespace lockstep {

/// A file of a snapshot to be written: `produce` hands over its bytes in order, in any pieces.
struct SnapshotFile {
  using Append = std::function<void(std::span<const std::byte>)>;

  std::string name;
  std::uint64_t bytes = 0;
  std::function<void(const Append&)> produce;
};

struct WriteOptions {
  int keep_last = 3;  // 0: all
  /// Gets a line for what went wrong after the snapshot was in its place: it is saved all the same.
  std::function<void(const std::string&)> warn = nullptr;
};

/// Writes a snapshot so that the directory has, at every moment and after any crash, all snapshots
/// it had before or those and the new one, complete: under a temporary name that carries epoch,
/// process and host; each file reserved, written, synced and read back; the manifest last; then
/// renamed. Then `latest` moves, `best` too if `manifest.best`, and old snapshots go: never the new
/// one, never `best`, never one of the last `keep_last`. One of the same step is replaced in one
/// step.
///
/// `manifest.files` is filled in here. Throws SystemError, after removing what it had written, when
/// the system refuses; nothing that was there before has then changed.
void write_snapshot(const std::string& directory, Manifest manifest,
                    std::span<const SnapshotFile> files, const WriteOptions& options);

/// The same in steps, where several processes write the files of one snapshot: one of them begins
/// and publishes, all write into the folder that begin_snapshot() has made. Throw SystemError.
std::string begin_snapshot(const std::string& directory, const Manifest& manifest);
std::map<std::string, Manifest::File> write_snapshot_files(const std::string& folder,
                                                           std::span<const SnapshotFile> files);
/// `manifest.files` are those that all have written. Removes the folder when it fails.
void publish_snapshot(const std::string& directory, const std::string& folder, Manifest manifest,
                      const WriteOptions& options);
void discard_snapshot(const std::string& folder);

/// Lets `latest` and `best` point to the newest snapshots that say so: a writer that was killed
/// after the renaming did not come to it. Throws SystemError.
void mend_pointers(const std::string& directory);

/// Removes what writers that have ended left behind. With the lock (`locked`) those are all of this
/// host; without it only those whose process is gone. Those of other hosts stay for a day.
void remove_leftovers(const std::string& directory, bool locked);

}  // namespace lockstep
