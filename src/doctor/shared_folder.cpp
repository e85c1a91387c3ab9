#include "doctor/shared_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "core/unique_fd.h"
#include "doctor/bounded.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLimit{10000};

std::string reason() {
  return std::strerror(errno);
}

// A folder that goes with everything that was made in it.
class TrialFolder {
 public:
  explicit TrialFolder(const std::string& parent) : path_(parent + "/lockstep-doctor-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) problem_ = reason();
  }
  ~TrialFolder() {
    if (!problem_.empty()) return;
    for (const char* name : {"one", "two"}) ::unlink(file(name).c_str());
    ::rmdir(path_.c_str());
  }
  TrialFolder(const TrialFolder&) = delete;
  TrialFolder& operator=(const TrialFolder&) = delete;

  std::string file(const char* name) const { return concat(path_, "/", name); }
  const std::string& path() const { return path_; }
  const std::string& problem() const { return problem_; }

 private:
  std::string path_;
  std::string problem_;
};

std::string write_file(const std::string& path, std::string_view text, bool sync) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) return reason();
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return reason();
  }
  return sync && ::fsync(fd.get()) != 0 ? concat("fsync: ", reason()) : std::string();
}

std::string try_sync(const TrialFolder& folder, std::chrono::microseconds& time) {
  const auto begin = Clock::now();
  std::string problem = write_file(folder.file("one"), "one", /*sync=*/true);
  if (!problem.empty()) return problem;
  const UniqueFd fd(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return concat("the folder cannot be opened: ", reason());
  if (::fsync(fd.get()) != 0) return concat("fsync of the folder: ", reason());
  time = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
  return "";
}

std::string try_rename(const TrialFolder& folder) {
  std::string problem = write_file(folder.file("two"), "two", /*sync=*/false);
  if (!problem.empty()) return problem;
  if (::rename(folder.file("two").c_str(), folder.file("one").c_str()) != 0) return reason();
  std::string text;
  std::ifstream(folder.file("one")) >> text;
  if (text != "two") return concat("the file holds '", text, "' after it was replaced");
  if (::access(folder.file("two").c_str(), F_OK) == 0) return "the old name is still there";
  return "";
}

std::string try_exclusive(const TrialFolder& folder) {
  const UniqueFd fd(
      ::open(folder.file("one").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd) return "a file that exists was created once more";
  return errno == EEXIST ? std::string() : reason();
}

std::string try_lock(const TrialFolder& folder) {
  const UniqueFd one(::open(folder.file("one").c_str(), O_RDWR | O_CLOEXEC));
  const UniqueFd two(::open(folder.file("one").c_str(), O_RDWR | O_CLOEXEC));
  if (!one || !two) return reason();
  if (::flock(one.get(), LOCK_EX | LOCK_NB) != 0) return reason();
  if (::flock(two.get(), LOCK_EX | LOCK_NB) == 0) return "two have the same lock";
  return "";
}

SharedFolderFacts read_now(const std::string& path) {
  SharedFolderFacts facts{.path = path};
  facts.kind = file_system_of(path);
  const TrialFolder folder(path);
  if (!folder.problem().empty()) {
    facts.problem = folder.problem();
    return facts;
  }
  facts.sync = try_sync(folder, facts.sync_time);
  if (!facts.sync.empty()) write_file(folder.file("one"), "one", /*sync=*/false);
  facts.rename = try_rename(folder);
  facts.exclusive_create = try_exclusive(folder);
  facts.lock = try_lock(folder);
  return facts;
}

}  // namespace

std::string file_system_of(const std::string& path) {
  struct Kind {
    long number;
    const char* name;
  };
  constexpr std::array<Kind, 13> kKinds = {{{0x6969, "nfs"},
                                            {0x0BD00BD0, "lustre"},
                                            {0x47504653, "gpfs"},
                                            {0x19830326, "beegfs"},
                                            {0x00C36400, "ceph"},
                                            {0x65735546, "fuse"},
                                            {0x01021994, "tmpfs"},
                                            {0xEF53, "ext4"},
                                            {0x58465342, "xfs"},
                                            {0x9123683E, "btrfs"},
                                            {0x794C7630, "overlay"},
                                            {0x01021997, "9p"},
                                            {0x2FC12FC1, "zfs"}}};
  struct statfs status {};
  if (::statfs(path.c_str(), &status) != 0) return "";
  const auto found = std::ranges::find(kKinds, static_cast<long>(status.f_type), &Kind::number);
  return found == kKinds.end() ? "" : found->name;
}

SharedFolderFacts read_shared_folder(const std::string& path) {
  const auto facts = run_bounded(kLimit, [path] { return read_now(path); });
  if (facts) return *facts;
  SharedFolderFacts hung{.path = path};
  hung.problem = concat("it does not answer within ", kLimit.count() / 1000, " s");
  return hung;
}

void judge_shared_folder(const SharedFolderFacts& facts, FindingList& list) {
  const std::string place =
      concat(facts.path, facts.kind.empty() ? "" : concat(" (", facts.kind, ")"));
  if (!facts.problem.empty()) {
    list.error("shared folder", concat(place, " cannot be used: ", facts.problem),
               "mount it on this node, and let this user write to it");
    return;
  }
  bool good = true;
  const auto judge = [&](const std::string& problem, const char* what, const char* cure) {
    if (problem.empty()) return;
    good = false;
    list.error("shared folder", concat(what, " in ", place, ": ", problem), cure);
  };
  judge(facts.sync, "nothing can be made to last (fsync)",
        "keep snapshots on another file system: a power cut may lose all of them here");
  judge(facts.rename, "a file cannot be replaced as a whole (rename)",
        "keep snapshots on another file system: readers may see half of one here");
  judge(facts.exclusive_create, "O_EXCL does not keep two processes apart",
        "mount it with NFS version 3 or later");
  if (!facts.lock.empty()) {
    good = false;
    list.warning("shared folder",
                 concat("files cannot be locked (flock) in ", place, ": ", facts.lock),
                 "lustre: mount with -o flock; nfs: without nolock, and with lockd running");
  }
  if (!good) return;
  list.ok("shared folder", concat(place,
                                  ": rename, fsync, O_EXCL and flock work; a small file lasts "
                                  "after ",
                                  static_cast<double>(facts.sync_time.count()) / 1000, " ms"));
  if (facts.kind == "tmpfs" || facts.kind == "overlay") {
    list.note("shared folder", concat(place, " is a file system of this machine alone"),
              "snapshots there are lost with it; name a folder that all nodes mount");
  }
}

}  // namespace lockstep
