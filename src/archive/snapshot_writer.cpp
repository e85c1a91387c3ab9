#include "archive/snapshot_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "archive/directory_lock.h"
#include "archive/durable_output.h"
#include "archive/snapshot_directory.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kTemporary = ".tmp-";
constexpr auto kForeignLife = std::chrono::hours(24);

// ".tmp-e3-p1234-n7-step_12@host": a process never uses a sequence number twice.
std::string temporary_name(const Manifest& writer, const std::string& name) {
  return concat(kTemporary, "e", writer.epoch, "-p", ::getpid(), "-n", writer.sequence, "-", name,
                "@", host_name());
}

struct TemporaryOwner {
  pid_t pid = 0;
  std::string host;
};

std::optional<TemporaryOwner> owner_of(const std::string& name) {
  if (!name.starts_with(kTemporary)) return std::nullopt;
  const std::size_t pid = name.find("-p");
  const std::size_t end = name.find("-n", pid);
  const std::size_t host = name.find('@');
  if (pid == std::string::npos || end == std::string::npos || host == std::string::npos) {
    return std::nullopt;
  }
  const auto number = parse_integer<pid_t>(name.substr(pid + 2, end - pid - 2));
  if (!number || *number <= 0) return std::nullopt;
  return TemporaryOwner{*number, name.substr(host + 1)};
}

void remove_quietly(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// Gone from the list in one step, so that a crash on the way leaves no half of a snapshot there.
void remove_snapshot(const std::string& directory, const std::string& name,
                     const Manifest& writer) {
  const std::string aside = concat(directory, "/", temporary_name(writer, name));
  if (::rename(concat(directory, "/", name).c_str(), aside.c_str()) != 0) {
    throw_errno(concat("cannot remove '", directory, "/", name, "'"));
  }
  std::error_code error;
  std::filesystem::remove_all(aside, error);
  if (error) throw SystemError(concat("cannot remove '", aside, "': ", error.message()));
}

Manifest::File write_file(const std::string& folder, const SnapshotFile& file) {
  DurableOutput output(concat(folder, "/", file.name), file.bytes);
  file.produce([&](std::span<const std::byte> bytes) { output.append(bytes); });
  return output.finish();
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  const std::string text = format_manifest(manifest);
  write_file(folder,
             {.name = kManifestName, .bytes = text.size(), .produce = [&](const auto& append) {
                append(std::as_bytes(std::span(text)));
              }});
  sync_directory(folder);
}

bool flags_unsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

bool is_there(int error) {
  return error == EEXIST || error == ENOTEMPTY;
}

// Puts the finished folder in the place of one of the same name. The old one is then under the
// temporary name or under the one returned.
std::string replace(const std::string& temporary, const std::string& target) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    return temporary;
  }
  if (!flags_unsupported(errno)) throw_errno(concat("cannot replace '", target, "'"));
  // Two steps; whoever looks in between finds the old one under this name (find_snapshots()).
  const std::string aside = target + ".replaced";
  remove_quietly(aside);
  if (::rename(target.c_str(), aside.c_str()) != 0)
    throw_errno(concat("cannot move '", target, "'"));
  if (::rename(temporary.c_str(), target.c_str()) != 0) {
    const int error = errno;
    ::rename(aside.c_str(), target.c_str());
    errno = error;
    throw_errno(concat("cannot rename '", temporary, "' to '", target, "'"));
  }
  return aside;
}

// Returns the path of what was replaced, if anything was.
std::optional<std::string> publish(const std::string& temporary, const std::string& target) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
    return std::nullopt;
  }
  // A plain rename of a folder replaces nothing but an empty folder.
  if (flags_unsupported(errno) && ::rename(temporary.c_str(), target.c_str()) == 0) {
    return std::nullopt;
  }
  if (!is_there(errno)) {
    throw_errno(concat("cannot rename '", temporary, "' to '", target, "'"));
  }
  return replace(temporary, target);
}

void prune(const std::string& directory, const Manifest& newest, int keep_last) {
  if (keep_last <= 0) return;
  const std::string just_written = snapshot_name(newest.step);
  const auto best = read_pointer(directory, kBest);
  int kept = 0;
  std::int64_t oldest_kept = newest.step;
  for (const FoundSnapshot& each : find_snapshots(directory)) {
    const bool sound = find_missing_files(each).empty();
    if (each.name == just_written || (sound && kept < keep_last)) {
      ++kept;
      oldest_kept = std::min(oldest_kept, each.step);
      continue;
    }
    if (each.name == best) continue;
    // One that is broken is of no use once enough newer ones are whole; until then it may tell what
    // happened.
    if (!sound && (kept < keep_last || each.step >= oldest_kept)) continue;
    remove_snapshot(directory, each.name, newest);
  }
}

template <typename Action>
void try_to(const WriteOptions& options, Action action) {
  try {
    action();
  } catch (const Error& error) {
    if (options.warn) options.warn(error.what());
  }
}

}  // namespace

std::string begin_snapshot(const std::string& directory, const Manifest& manifest) {
  std::string folder =
      concat(directory, "/", temporary_name(manifest, snapshot_name(manifest.step)));
  if (::mkdir(folder.c_str(), 0755) != 0) throw_errno(concat("cannot make '", folder, "'"));
  return folder;
}

std::map<std::string, Manifest::File> write_snapshot_files(const std::string& folder,
                                                           std::span<const SnapshotFile> files) {
  std::map<std::string, Manifest::File> written;
  for (const SnapshotFile& file : files) written[file.name] = write_file(folder, file);
  return written;
}

void publish_snapshot(const std::string& directory, const std::string& folder, Manifest manifest,
                      const WriteOptions& options) {
  const std::string name = snapshot_name(manifest.step);
  std::optional<std::string> replaced;
  manifest.host = host_name();
  try {
    write_manifest(folder, manifest);
    replaced = publish(folder, concat(directory, "/", name));
  } catch (...) {
    discard_snapshot(folder);
    throw;
  }
  sync_directory(directory);

  try_to(options, [&] { move_pointer(directory, kLatest, name); });
  if (manifest.best) try_to(options, [&] { move_pointer(directory, kBest, name); });
  if (replaced) remove_quietly(*replaced);
  try_to(options, [&] { prune(directory, manifest, options.keep_last); });
}

void discard_snapshot(const std::string& folder) {
  remove_quietly(folder);
}

void write_snapshot(const std::string& directory, Manifest manifest,
                    std::span<const SnapshotFile> files, const WriteOptions& options) {
  const std::string folder = begin_snapshot(directory, manifest);
  try {
    manifest.files = write_snapshot_files(folder, files);
  } catch (...) {
    discard_snapshot(folder);
    throw;
  }
  publish_snapshot(directory, folder, std::move(manifest), options);
}

void mend_pointers(const std::string& directory) {
  std::map<std::string, std::string> targets;
  for (const FoundSnapshot& each : find_snapshots(directory)) {  // newest first
    if (!each.manifest) continue;
    targets.try_emplace(kLatest, each.name);
    if (each.manifest->best) targets.try_emplace(kBest, each.name);
  }
  for (const auto& [pointer, target] : targets) {
    if (read_pointer(directory, pointer) != target) move_pointer(directory, pointer, target);
  }
}

void remove_leftovers(const std::string& directory, bool locked) {
  const std::string host = host_name();
  struct stat now {};
  if (::stat(concat(directory, "/.lock").c_str(), &now) != 0) return;
  std::error_code error;
  std::vector<std::string> dead;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path();
    const auto owner = owner_of(entry->path().filename());
    if (!owner) continue;
    if (owner->host == host) {
      const bool gone = ::kill(owner->pid, 0) != 0 && errno == ESRCH;
      if (locked || gone) dead.push_back(path);
      continue;
    }
    // Both times are the file server's, so no two clocks are compared. The lock was just written.
    struct stat status {};
    if (locked && ::stat(path.c_str(), &status) == 0 &&
        std::chrono::seconds(now.st_mtime - status.st_mtime) > kForeignLife) {
      dead.push_back(path);
    }
  }
  for (const std::string& path : dead) remove_quietly(path);
}

}  // namespace lockstep
