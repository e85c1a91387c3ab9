#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "archive/snapshot_directory.h"
#include "archive/snapshot_writer.h"
#include "comm/places.h"
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
  std::optional<SharedSave> shared = std::nullopt;  // every rank writes its share
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
  share_duties(/*again=*/false);
}

void SnapshotStore::Impl::readmit() {
  share_duties(/*again=*/true);
}

bool SnapshotStore::Impl::is_first_on_node() const {
  return world_.rank() == first_rank_of_node(world_);
}

// In a world that was formed again, another process than before may have to write. Since a failure
// may come between, nothing here depends on how far the last call came.
void SnapshotStore::Impl::share_duties(bool again) {
  writers_store_.reset();  // the world may have another one
  const bool is_to_write = options_.per_node ? is_first_on_node() : world_.rank() == 0;
  if (!is_to_write && lock_) {
    writer_.wait();  // one process at a time writes into a directory
    writes_ = false;
    cannot_write_.clear();
    lock_.reset();
  }
  world_.barrier();  // what others have let go of is free
  // Now that all are there: connecting waits for the process with the store, which may have died
  // when a save begins.
  if (options_.in_parts && world_.world_size() > 1) writers_store();
  const bool takes = is_to_write && (!lock_ || is_locked_by_another());
  const bool told = is_locked_by_another();
  if (takes) lock(told ? std::chrono::milliseconds(0) : kLockPatience);
  compare_locks(again);
  if (takes && !writes_ && !told) {
    // per_node on a disk that the nodes share: one copy is enough.
    report(concat("'", options_.directory, "' is shared with the node of process ", lock_->holder,
                  ", which saves for this one too"));
  }
  if (takes && writes_ && cannot_write_.empty()) tidy_directory();
  agree_on_sequence();
}

void SnapshotStore::Impl::report(const std::string& line) const {
  if (options_.report) return options_.report(one_line(line));
  std::fprintf(stderr, "lockstep: %s\n", one_line(line).c_str());
}

void SnapshotStore::Impl::lock(std::chrono::milliseconds patience) {
  using Outcome = DirectoryLock::Outcome;
  lock_ = lock_directory(options_.directory, patience);
  writes_ = true;
  cannot_write_.clear();
  if (lock_->outcome == Outcome::failed) {
    cannot_write_ = lock_->reason;
    report(concat("snapshots cannot be saved: ", cannot_write_));
  } else if (lock_->outcome == Outcome::unsupported) {
    report(concat("the file system of '", options_.directory,
                  "' knows no locks; take care that no other job saves there"));
  }
}

// All ranks learn what each writer met, so that all of them refuse or none.
void SnapshotStore::Impl::compare_locks(bool again) {
  json mine = {{"again", again}};
  if (lock_) {
    mine["name"] = lock_holder_name();
    mine["taken_by"] = is_locked_by_another() ? lock_->holder : "";
  }
  std::vector<std::string> writers;
  const std::vector<json> all = world_.group().all_gather_json(mine);
  for (const json& each : all) {
    writers.push_back(each.value("name", ""));
    again = again || each.at("again").get<bool>();
  }
  const auto is_of_this_job = [&](const std::string& holder) {
    return std::find(writers.begin(), writers.end(), holder) != writers.end();
  };
  for (const json& each : all) {
    const std::string holder = each.value("taken_by", "");
    if (again || holder.empty() || is_of_this_job(holder)) continue;
    throw InvalidArgument(concat("another job saves into '", options_.directory, "': process ",
                                 holder, " (host and number); stop it or use another directory"));
  }
  if (!is_locked_by_another()) return;
  writes_ = !is_of_this_job(lock_->holder);
  // A process that was left out, on a node that is cut off, may have it for a while yet.
  if (writes_) cannot_write_ = concat("process ", lock_->holder, " has not let go of it");
}

void SnapshotStore::Impl::tidy_directory() {
  remove_leftovers(options_.directory, lock_->outcome == DirectoryLock::Outcome::held);
  try {
    mend_pointers(options_.directory);
  } catch (const Error& error) {
    report(concat("'latest' and 'best' may point to older snapshots: ", error.what()));
  }
}

// Saves are numbered alike on all nodes, because all ranks call save() equally often.
void SnapshotStore::Impl::agree_on_sequence() {
  static std::atomic<int> stores = 0;
  std::int64_t mine = sequence_;
  if (is_first_on_node()) mine = std::max(mine, highest_sequence(options_.directory));
  const std::string token = concat(lock_holder_name(), "/", ++stores);
  const auto all = world_.group().all_gather_json({{"sequence", mine}, {"token", token}});
  for (const json& each : all) {
    sequence_ = std::max(sequence_, each.at("sequence").get<std::int64_t>());
  }
  token_ = all.front().at("token").get<std::string>();
}

void SnapshotStore::Impl::save(const Snapshot& snapshot, const SaveOptions& options) {
  ++sequence_;
  const bool in_parts = is_in_parts(snapshot);
  if (!writes_ && !in_parts) return;
  writer_.wait();
  try {
    if (in_parts && options_.per_node) {
      throw InvalidArgument(
          "every rank has a part of the model, and per_node is set; give all ranks one directory "
          "that they share");
    }
    if (is_locked_by_another()) lock(std::chrono::milliseconds(0));
    if (is_locked_by_another()) {
      cannot_write_ = concat("process ", lock_->holder, " has not let go of it");
    }
    if (!cannot_write_.empty()) throw SystemError(cannot_write_);
    const int share = in_parts ? world_.rank() : 0;
    auto job = std::make_shared<Job>(Job{plan_snapshot(snapshot, share), options});
    if (in_parts) job->shared = share_save(writers_store());
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
    // The others are not left waiting for this rank's share.
    if (in_parts)
      writer_.start([shared = share_save(writers_store_ ? *writers_store_ : world_.store()),
                     what = std::string(error.what())] { shared.give_up(what); });
    note_failure(snapshot.step, error.what());
  }
}

// The main thread may wait in the world's store for what another rank sets after a save, and the
// save for this rank's writer: over one connection the two would wait for each other.
const Store& SnapshotStore::Impl::writers_store() {
  if (!writers_store_) writers_store_ = world_.store().clone();
  return *writers_store_;
}

SharedSave SnapshotStore::Impl::share_save(const Store& store) const {
  return SharedSave({.store = store,
                     .served = world_.store(),
                     .keys = concat("lockstep/snapshot/", token_, "/", sequence_, "/"),
                     .rank = world_.rank(),
                     .ranks = world_.world_size(),
                     .healthy = health()});
}

void SnapshotStore::Impl::reserve(const Snapshot& snapshot) {
  const bool in_parts = is_in_parts(snapshot);
  if ((!writes_ && !in_parts) || !cannot_write_.empty() || !options_.background) return;
  writer_.wait();
  try {
    const int share = in_parts ? world_.rank() : 0;
    auto plan = std::make_shared<SnapshotPlan>(plan_snapshot(snapshot, share));
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
    const WriteOptions writing{.keep_last = options_.keep_last,
                               .warn = [&](const std::string& line) {
                                 report(concat("step ", step, " is saved, but ", line));
                               }};
    if (job.shared) {
      job.shared->write(options_.directory, job.plan.manifest, files, writing);
    } else {
      write_snapshot(options_.directory, job.plan.manifest, files, writing);
    }
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
  // Of what all have a share in, rank 0 tells, whose share it was that failed.
  if (!writes_) return;
  report(concat("step ", step, " is not saved: ", first_line(reason),
                "; older snapshots are as they were"));
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
