#include "launch/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "core/durable_file.h"
#include "launch/unique_directory.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = "/.lock";
constexpr const char* kSocket = "/agent.sock";
constexpr const char* kLink = "/run";  // from a folder in the temporary place to a run directory

std::string place_of_user(const std::string& temporary) {
  return concat(temporary, "/lockstep-", ::getuid());
}

std::string temporary_place(const Environment& environment) {
  const std::string wanted = environment.get("TMPDIR").value_or("");
  return wanted.empty() || wanted.front() != '/' ? "/tmp" : wanted;
}

// Why nothing of ours may be put there; empty if it may. /tmp is everyone's: a folder of that name
// can be a trap.
std::string what_is_wrong_with(const std::string& folder) {
  struct stat status = {};
  if (::lstat(folder.c_str(), &status) != 0) return "it cannot be looked at";
  if (!S_ISDIR(status.st_mode)) return "it is not a folder";
  if (status.st_uid != ::getuid()) return concat("it belongs to user ", status.st_uid);
  if ((status.st_mode & 022) != 0) return "others may write to it";
  return "";
}

std::string make_place_of_user(const std::string& temporary) {
  const std::string place = place_of_user(temporary);
  if (::mkdir(place.c_str(), 0700) != 0 && errno != EEXIST) {
    throw_errno(concat("cannot make the folder '", place, "'; choose another with --run-dir"));
  }
  if (const std::string wrong = what_is_wrong_with(place); !wrong.empty()) {
    throw SystemError(concat("'", place, "' cannot be used: ", wrong,
                             "; remove it, set TMPDIR, or choose a folder with --run-dir"));
  }
  return place;
}

// The lock, held; nothing if another process holds it or the folder is gone.
UniqueFd try_lock(const std::string& folder) {
  UniqueFd lock(::open((folder + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock && errno == ENOENT) return {};
  if (!lock) throw_errno(concat("cannot make a file in '", folder, "'"));
  // More than once, because is_live() of another process holds it for an instant.
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
    // Some network file systems have no locks: then agents that share a folder are not kept apart.
    if (errno != EWOULDBLOCK) return lock;
    ::usleep(2000);
  }
  return {};
}

// Whether someone may want what is in the folder.
bool holds_something_of_worth(const fs::path& folder) {
  static const std::set<std::string> kOurs = {"job.json",   "events.jsonl", ".lock",
                                              "agent.sock", "ask.sock",     "stacks.json"};
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.parent_path() == folder && kOurs.contains(path.filename().string())) continue;
    if (entry->is_symlink()) return true;
    if (entry->is_regular_file() && entry->file_size() > 0) return true;
  }
  return static_cast<bool>(error);
}

bool remove_if_worthless(const std::string& folder) {
  if (holds_something_of_worth(folder)) return false;
  std::error_code error;
  fs::remove_all(folder, error);
  return !error;
}

// Whether the folder's agent runs. The lock decides: it also works for a pid of another container
// that shares the temporary place.
bool is_live(const std::string& folder) {
  const UniqueFd lock(::open((folder + kLock).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!lock) return false;
  return ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool is_our_folder(const fs::path& path) {
  return what_is_wrong_with(path.string()).empty();
}

}  // namespace

std::optional<JobRecord> read_job(const std::string& folder) {
  std::ifstream file(folder + "/job.json", std::ios::binary);
  if (!file) return std::nullopt;
  return job_record_from_json(std::string(std::istreambuf_iterator<char>(file), {}));
}

RunDirectory::RunDirectory(const RunDirectoryOptions& options, const Environment& environment) {
  const std::string temporary = temporary_place(environment);
  const std::string name = as_file_name(options.run_id);
  if (!options.path || options.path->empty()) {
    temporary_ = true;
    const std::string place = make_place_of_user(temporary);
    // Someone who clears away old folders may take a new one between its making and its locking.
    while (!lock_) {
      path_ = make_unique_directory(place, name);
      lock_ = try_lock(path_);
    }
  } else {
    std::string base = fs::absolute(*options.path).lexically_normal().string();
    if (base.size() > 1 && base.ends_with('/')) base.pop_back();  // of "."
    path_ = base;
    try {
      make_directories(*options.path);
      lock_ = try_lock(path_);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(concat("--run-dir: ", error.what()));
    } catch (const SystemError& error) {
      throw SystemError(concat("--run-dir: ", error.what()));
    }
    for (int number = 1; !lock_; ++number) {
      path_ = concat(base, "/node_", as_file_name(options.host));
      if (number > 1) path_ += concat(".", number);
      make_directories(path_);
      lock_ = try_lock(path_);
    }
    try {
      link_ = make_unique_directory(make_place_of_user(temporary), name);
      fs::create_directory_symlink(path_, link_ + kLink);
    } catch (const std::exception&) {
      // It is only how `lockstep stack` finds the job.
    }
  }
  choose_socket_path(environment);
}

void RunDirectory::choose_socket_path(const Environment& environment) {
  socket_path_ = path_ + kSocket;
  const std::array<std::string, 3> places = {temporary_place(environment), "/tmp",
                                             environment.get("XDG_RUNTIME_DIR").value_or("")};
  for (const std::string& place : places) {
    if (socket_path_.size() < sizeof(sockaddr_un::sun_path)) return;
    if (place.empty() || !fs::is_directory(place)) continue;
    if (!socket_folder_.empty()) fs::remove_all(socket_folder_);
    socket_folder_ = make_unique_directory(make_place_of_user(place), "s");
    fs::create_directory_symlink(path_, socket_folder_ + kLink);
    socket_path_ = socket_folder_ + kSocket;
  }
  if (socket_path_.size() >= sizeof(sockaddr_un::sun_path)) {
    throw SystemError(concat("'", socket_path_,
                             "' is too long for a socket; set TMPDIR to a "
                             "shorter path"));
  }
}

RunDirectory::~RunDirectory() {
  ::unlink(socket_path_.c_str());
  std::error_code ignored;
  if (!socket_folder_.empty()) fs::remove_all(socket_folder_, ignored);
  if (!link_.empty()) fs::remove_all(link_, ignored);
}

void RunDirectory::write_job(const JobRecord& record) const {
  // Of use only while this process lives; the main loop does not wait for a disk for it.
  replace_file(path_ + "/job.json", to_json(record) + "\n");
}

bool RunDirectory::finish(bool succeeded) {
  return temporary_ && succeeded && remove_if_worthless(path_);
}

std::vector<LiveJob> find_live_jobs(const Environment& environment) {
  const std::set<std::string> places = {place_of_user(temporary_place(environment)),
                                        place_of_user("/tmp")};
  std::map<std::string, JobRecord> found;  // by run directory: links may name one twice
  for (const std::string& place : places) {
    if (!is_our_folder(place)) continue;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(place, ignored)) {
      if (!is_our_folder(entry.path())) continue;
      const fs::path link = entry.path().string() + kLink;
      const bool linked = fs::is_symlink(link);
      const std::string folder =
          linked ? fs::read_symlink(link, ignored).string() : entry.path().string();
      if (is_live(folder)) {
        if (auto record = read_job(folder)) found.emplace(folder, *std::move(record));
      } else if (linked) {
        fs::remove_all(entry.path(), ignored);
      } else if (fs::exists(folder + kLock)) {
        remove_if_worthless(folder);
      }
    }
  }
  std::vector<LiveJob> jobs;
  for (auto& [path, record] : found) jobs.push_back({path, std::move(record)});
  std::ranges::sort(
      jobs, {}, [](const LiveJob& job) { return std::pair(job.record.started, job.record.pid); });
  return jobs;
}

}  // namespace lockstep
