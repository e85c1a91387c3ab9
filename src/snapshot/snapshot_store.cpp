#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "archive/snapshot_directory.h"
#include "archive/snapshot_writer.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "snapshot/snapshot_impl.h"

namespace lockstep {
namespace {

using nlohmann::json;

// A process that was killed with much memory takes a moment to be gone.
constexpr auto kLockPatience = std::chrono::seconds(3);

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::int64_t highest_sequence(const std::string& directory) {
  try {
    const auto found = find_snapshots(directory);
    return found.empty() || !found.front().manifest ? 0 : found.front().manifest->sequence;
  } catch (const Error&) {
    return 0;  // whoever loads from here gets the error
  }
}

}  // namespace

struct SnapshotStore::Impl::Job {
  SnapshotPlan plan;
  SaveOptions options;
  bool staged = false;
};

SnapshotStore::Impl::Impl(World& world, const SnapshotStoreOptions& options)
    : world_(world), options_(options) {
  if (options_.directory.empty()) {
    throw InvalidArgument("SnapshotStore: directory is empty; name the folder for snapshots");
  }
  if (options_.keep_last < 0) {
    throw InvalidArgument(concat("SnapshotStore: keep_last is ", options_.keep_last,
                                 "; it is a number of snapshots, or 0 for all"));
  }
  writes_ = options_.per_node ? world_.local_rank() == 0 : world_.rank() == 0;
  take_directory();
  agree_on_sequence();
}

void SnapshotStore::Impl::report(const std::string& line) const {
  if (options_.report) return options_.report(one_line(line));
  std::fprintf(stderr, "lockstep: %s\n", one_line(line).c_str());
}

void SnapshotStore::Impl::take_directory() {
  using Outcome = DirectoryLock::Outcome;
  if (writes_) {
    lock_ = lock_directory(options_.directory, kLockPatience);
    if (lock_.outcome == Outcome::failed) {
      cannot_write_ = lock_.reason;
      report(concat("snapshots cannot be saved: ", cannot_write_));
    } else if (lock_.outcome == Outcome::unsupported) {
      report(concat("the file system of '", options_.directory,
                    "' knows no locks; take care that no other job saves there"));
    }
  }
  compare_locks();
  if (lock_.outcome == Outcome::taken) {
    // per_node on a disk that the nodes share: one copy is enough.
    report(concat("'", options_.directory, "' is shared with the node of process ", lock_.holder,
                  ", which saves for this one too"));
    writes_ = false;
  }
  if (writes_ && cannot_write_.empty()) {
    remove_leftovers(options_.directory, lock_.outcome == Outcome::held);
    try {
      mend_pointers(options_.directory);
    } catch (const Error& error) {
      report(concat("'latest' and 'best' may point to older snapshots: ", error.what()));
    }
  }
}

// All ranks learn what each writer met, so that all of them refuse or none.
void SnapshotStore::Impl::compare_locks() {
  json mine = json::object();
  if (writes_) {
    const bool taken = lock_.outcome == DirectoryLock::Outcome::taken;
    mine = {{"name", lock_holder_name()}, {"taken_by", taken ? lock_.holder : ""}};
  }
  std::vector<std::string> writers;
  const std::vector<json> all = world_.group().all_gather_json(mine);
  for (const json& each : all) writers.push_back(each.value("name", ""));
  for (const json& each : all) {
    const std::string holder = each.value("taken_by", "");
    if (holder.empty()) continue;
    if (std::find(writers.begin(), writers.end(), holder) != writers.end()) continue;
    throw InvalidArgument(concat("another job saves into '", options_.directory, "': process ",
                                 holder, " (host and number); stop it or use another directory"));
  }
}

void SnapshotStore::Impl::readmit() {
  compare_locks();
  agree_on_sequence();
}

// Saves are numbered alike on all nodes, because all ranks call save() equally often.
void SnapshotStore::Impl::agree_on_sequence() {
  std::int64_t mine = sequence_;
  if (world_.local_rank() == 0) mine = std::max(mine, highest_sequence(options_.directory));
  for (const json& each : world_.group().all_gather_json(mine)) {
    sequence_ = std::max(sequence_, each.get<std::int64_t>());
  }
}

void SnapshotStore::Impl::save(const Snapshot& snapshot, const SaveOptions& options) {
  ++sequence_;
  if (!writes_) return;
  writer_.wait();
  try {
    if (!cannot_write_.empty()) throw SystemError(cannot_write_);
    auto job = std::make_shared<Job>(Job{plan_snapshot(snapshot), options});
    job->plan.manifest.sequence = sequence_;
    job->plan.manifest.best = options.best;
    if (options_.background && staging_.has_room_for(job->plan)) {
      staging_.reserve(job->plan, /*touch=*/false);
      staging_.copy(job->plan);
      // The live tensors are not kept any longer than needed.
      for (SnapshotPlan::Part& part : job->plan.parts) part.tensors.clear();
      job->staged = true;
    } else if (options_.background) {
      report(concat("step ", snapshot.step, ": ", job->plan.staging_bytes,
                    " bytes of memory for a copy are not to be had (", available_memory(),
                    " are free); training waits until the snapshot is written"));
    }
    const bool staged = job->staged;
    // The writer's thread has streams of its own, which do not wait for the caller's.
    if (!staged) wait_for_devices(job->plan);
    writer_.start([this, job] { write(*job); });
    if (!staged) writer_.wait();
  } catch (const std::exception& error) {
    note_failure(snapshot.step, error.what());
  }
}

void SnapshotStore::Impl::reserve(const Snapshot& snapshot) {
  if (!writes_ || !cannot_write_.empty() || !options_.background) return;
  writer_.wait();
  try {
    auto plan = std::make_shared<SnapshotPlan>(plan_snapshot(snapshot));
    if (!staging_.has_room_for(*plan)) return;
    writer_.start([this, plan] {
      try {
        staging_.reserve(*plan, /*touch=*/true);
      } catch (const std::exception&) {
        // The first save tries again, and says what is wrong.
      }
    });
  } catch (const std::exception&) {
    // As above.
  }
}

void SnapshotStore::Impl::write(const Job& job) {
  const std::int64_t step = job.plan.manifest.step;
  try {
    const auto files = files_of(job.plan, job.staged ? staging_.data() : nullptr);
    write_snapshot(options_.directory, job.plan.manifest, files,
                   {.keep_last = options_.keep_last, .warn = [&](const std::string& line) {
                      report(concat("step ", step, " is saved, but ", line));
                    }});
    const std::lock_guard lock(mutex_);
    last_saved_ = step;
    last_error_.clear();
  } catch (const std::exception& error) {
    note_failure(step, error.what());
  }
}

void SnapshotStore::Impl::note_failure(std::int64_t step, const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    last_error_ = reason;
  }
  report(concat("step ", step, " is not saved: ", first_line(reason),
                "; training goes on, and older snapshots are as they were"));
}

std::optional<std::int64_t> SnapshotStore::Impl::last_saved() const {
  const std::lock_guard lock(mutex_);
  return last_saved_;
}

std::string SnapshotStore::Impl::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

SnapshotStore::SnapshotStore(World& world, const SnapshotStoreOptions& options)
    : impl_(std::make_unique<Impl>(world, options)) {}
SnapshotStore::~SnapshotStore() = default;

void SnapshotStore::readmit() {
  impl_->readmit();
}
bool SnapshotStore::writes() const {
  return impl_->writes();
}
void SnapshotStore::save(const Snapshot& snapshot, const SaveOptions& options) {
  impl_->save(snapshot, options);
}
void SnapshotStore::reserve(const Snapshot& snapshot) {
  impl_->reserve(snapshot);
}
void SnapshotStore::wait() {
  impl_->wait();
}
std::optional<std::int64_t> SnapshotStore::last_saved() const {
  return impl_->last_saved();
}
std::string SnapshotStore::last_error() const {
  return impl_->last_error();
}

}  // namespace lockstep
