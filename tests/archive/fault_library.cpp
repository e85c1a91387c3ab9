// Preloaded into a program, it makes one system call on files under a folder fail, or ends the
// process there. Environment:
//
//   LOCKSTEP_FAULT_UNDER  the folder; calls on other files are not counted
//   LOCKSTEP_FAULT_AT     which call, counted from 1 after lockstep_fault_arm(); 0: none
//   LOCKSTEP_FAULT_KIND   crash  the process dies before the call
//                         torn   of a write, half is done, then the process dies
//                         power  the process dies, and what was not synced is lost
//                         ENOSPC, EIO  the call fails with this error
//   LOCKSTEP_FAULT_LOG    gets the number of calls and the name of the one that failed
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace {

struct Faults {
  bool armed = false;
  long count = 0;
  long at = 0;
  std::string kind, under, log;
  std::set<std::string> unsynced;
  std::recursive_mutex mutex;
};

Faults& faults() {
  static auto* instance = new Faults;  // never destroyed: calls come until the very end
  return *instance;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  char link[64], target[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : "";
}

bool concerns(const std::string& path) {
  Faults& all = faults();
  return all.armed && !all.under.empty() && path.compare(0, all.under.size(), all.under) == 0;
}

void write_log(const char* name) {
  static const auto open_file = real<int (*)(const char*, int, ...)>("open");
  static const auto write_bytes = real<ssize_t (*)(int, const void*, size_t)>("write");
  Faults& all = faults();
  if (all.log.empty()) return;
  const int fd = open_file(all.log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const std::string text = std::to_string(all.count) + " " + name + "\n";
  [[maybe_unused]] const ssize_t ignored = write_bytes(fd, text.data(), text.size());
}

[[noreturn]] void die() {
  if (faults().kind == "power") {
    static const auto truncate_file = real<int (*)(const char*, off_t)>("truncate");
    for (const std::string& path : faults().unsynced) truncate_file(path.c_str(), 0);
  }
  ::kill(::getpid(), SIGKILL);
  ::pause();
  std::abort();
}

// Whether this call is the one; errno is then set, unless the process has died. `partial` does half
// of the work of a torn write.
template <typename Partial>
bool strikes(const char* name, const std::string& path, Partial partial) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  if (!concerns(path)) return false;
  if (++all.count != all.at) return false;
  write_log(name);
  if (all.kind == "ENOSPC" || all.kind == "EIO") {
    errno = all.kind == "EIO" ? EIO : ENOSPC;
    return true;
  }
  if (all.kind == "torn") partial();
  die();
}

bool strikes(const char* name, const std::string& path) {
  return strikes(name, path, [] {});
}

void note_write(int fd) {
  const std::lock_guard lock(faults().mutex);
  const std::string path = path_of(fd);
  if (concerns(path)) faults().unsynced.insert(path);
}

void note_rename(const std::string& from, const std::string& to) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  std::set<std::string> moved;
  for (const std::string& path : all.unsynced) {
    const bool inside = path.compare(0, from.size() + 1, from + "/") == 0;
    moved.insert(inside ? to + path.substr(from.size()) : path == from ? to : path);
  }
  all.unsynced = std::move(moved);
}

std::string at_path(int directory, const char* path) {
  if (path[0] == '/' || directory == AT_FDCWD) return path;
  return path_of(directory) + "/" + path;
}

int open_with(const char* name, const char* path, int flags, mode_t mode) {
  if (strikes(name, path)) return -1;
  return real<int (*)(const char*, int, ...)>(name)(path, flags, mode);
}

int openat_with(const char* name, int directory, const char* path, int flags, mode_t mode) {
  if (strikes(name, at_path(directory, path))) return -1;
  return real<int (*)(int, const char*, int, ...)>(name)(directory, path, flags, mode);
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

extern "C" {

void lockstep_fault_arm() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  Faults& all = faults();
  all.at = std::atol(variable("LOCKSTEP_FAULT_AT").c_str());
  all.kind = variable("LOCKSTEP_FAULT_KIND");
  all.under = variable("LOCKSTEP_FAULT_UNDER");
  all.log = variable("LOCKSTEP_FAULT_LOG");
  all.armed = true;
  std::atexit([] {
    if (faults().count < faults().at) write_log("none");
  });
}

// From here on, without the environment: call number `at` from now, of files under `under`.
void lockstep_fault_set(const char* under, long at, const char* kind) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.under = under;
  all.kind = kind;
  all.at = at;
  all.count = 0;
  all.armed = true;
}

long lockstep_fault_count() {
  const std::lock_guard lock(faults().mutex);
  return faults().count;
}

#define FAULT_OPEN(name)                           \
  int name(const char* path, int flags, ...) {     \
    va_list arguments;                             \
    va_start(arguments, flags);                    \
    const mode_t mode = mode_of(flags, arguments); \
    va_end(arguments);                             \
    return open_with(#name, path, flags, mode);    \
  }
FAULT_OPEN(open)
FAULT_OPEN(open64)

#define FAULT_OPENAT(name)                                    \
  int name(int directory, const char* path, int flags, ...) { \
    va_list arguments;                                        \
    va_start(arguments, flags);                               \
    const mode_t mode = mode_of(flags, arguments);            \
    va_end(arguments);                                        \
    return openat_with(#name, directory, path, flags, mode);  \
  }
FAULT_OPENAT(openat)
FAULT_OPENAT(openat64)

ssize_t write(int fd, const void* bytes, size_t count) {
  const auto call = real<ssize_t (*)(int, const void*, size_t)>("write");
  note_write(fd);
  if (strikes("write", path_of(fd), [&] { call(fd, bytes, count / 2); })) return -1;
  return call(fd, bytes, count);
}

#define FAULT_PWRITE(name, offset_type)                                                      \
  ssize_t name(int fd, const void* bytes, size_t count, offset_type offset) {                \
    const auto call = real<ssize_t (*)(int, const void*, size_t, offset_type)>(#name);       \
    note_write(fd);                                                                          \
    if (strikes(#name, path_of(fd), [&] { call(fd, bytes, count / 2, offset); })) return -1; \
    return call(fd, bytes, count, offset);                                                   \
  }
FAULT_PWRITE(pwrite, off_t)
FAULT_PWRITE(pwrite64, off64_t)

#define FAULT_PREAD(name, offset_type)                                                          \
  ssize_t name(int fd, void* bytes, size_t count, offset_type offset) {                         \
    if (strikes(#name, path_of(fd))) return -1;                                                 \
    return real<ssize_t (*)(int, void*, size_t, offset_type)>(#name)(fd, bytes, count, offset); \
  }
FAULT_PREAD(pread, off_t)
FAULT_PREAD(pread64, off64_t)

#define FAULT_FALLOCATE(name, offset_type)                                                     \
  int name(int fd, int mode, offset_type offset, offset_type length) {                         \
    note_write(fd);                                                                            \
    if (strikes(#name, path_of(fd))) return -1;                                                \
    return real<int (*)(int, int, offset_type, offset_type)>(#name)(fd, mode, offset, length); \
  }
FAULT_FALLOCATE(fallocate, off_t)
FAULT_FALLOCATE(fallocate64, off64_t)

#define FAULT_SYNC(name)                              \
  int name(int fd) {                                  \
    const std::string path = path_of(fd);             \
    if (strikes(#name, path)) return -1;              \
    const int result = real<int (*)(int)>(#name)(fd); \
    if (result == 0) {                                \
      const std::lock_guard lock(faults().mutex);     \
      faults().unsynced.erase(path);                  \
    }                                                 \
    return result;                                    \
  }
FAULT_SYNC(fsync)
FAULT_SYNC(fdatasync)

int close(int fd) {
  const auto call = real<int (*)(int)>("close");
  const std::string path = faults().armed ? path_of(fd) : "";
  if (strikes("close", path)) {
    call(fd);  // Linux closes also where it reports an error
    errno = faults().kind == "EIO" ? EIO : ENOSPC;
    return -1;
  }
  return call(fd);
}

int mkdir(const char* path, mode_t mode) noexcept {
  if (strikes("mkdir", path)) return -1;
  return real<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}

int unlink(const char* path) noexcept {
  if (strikes("unlink", path)) return -1;
  return real<int (*)(const char*)>("unlink")(path);
}

int rmdir(const char* path) noexcept {
  if (strikes("rmdir", path)) return -1;
  return real<int (*)(const char*)>("rmdir")(path);
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  if (strikes("unlinkat", at_path(directory, path))) return -1;
  return real<int (*)(int, const char*, int)>("unlinkat")(directory, path, flags);
}

int symlink(const char* target, const char* path) noexcept {
  if (strikes("symlink", path)) return -1;
  return real<int (*)(const char*, const char*)>("symlink")(target, path);
}

int rename(const char* from, const char* to) noexcept {
  if (strikes("rename", from)) return -1;
  const int result = real<int (*)(const char*, const char*)>("rename")(from, to);
  if (result == 0) note_rename(from, to);
  return result;
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) noexcept {
  if (strikes("renameat2", from)) return -1;
  const int result = real<int (*)(int, const char*, int, const char*, unsigned)>("renameat2")(
      from_directory, from, to_directory, to, flags);
  if (result == 0) note_rename(from, to);
  return result;
}

}  // extern "C"
