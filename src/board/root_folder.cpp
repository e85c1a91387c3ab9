#include "board/root_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>

#include "lockstep/error.h"

namespace lockstep {
namespace {

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

FolderEntry::Kind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FolderEntry::Kind::file;
  if (S_ISDIR(mode)) return FolderEntry::Kind::folder;
  return S_ISLNK(mode) ? FolderEntry::Kind::link : FolderEntry::Kind::other;
}

}  // namespace

bool is_plain_path(std::string_view path) {
  if (path.size() >= PATH_MAX || path.find('\0') != std::string_view::npos) return false;
  while (true) {
    const std::size_t end = path.find('/');
    const std::string_view name = path.substr(0, end);
    if (name.empty() || name == "." || name == ".." || name.size() > NAME_MAX) return false;
    if (end == std::string_view::npos) return true;
    path.remove_prefix(end + 1);
  }
}

std::string join_path(std::string_view folder, std::string_view name) {
  std::string path(folder);
  if (!path.empty() && !name.empty()) path += '/';
  return path.append(name);
}

RootFolder::RootFolder(const std::string& path) {
  std::error_code error;
  path_ = std::filesystem::canonical(path, error).string();
  if (!error) root_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (error || !root_) {
    const int code = error ? error.value() : errno;
    throw InvalidArgument(concat("'", path, "' is no directory that can be read (",
                                 std::strerror(code), "); name one with runs below it"));
  }
}

UniqueFd RootFolder::open_below(std::string_view path, int flags) const {
  if (path.empty()) return UniqueFd(::openat(root_.get(), ".", flags | O_DIRECTORY));
  if (!is_plain_path(path)) return {};
  UniqueFd folder;
  for (int at = root_.get();;) {
    const std::size_t end = path.find('/');
    const std::string name(path.substr(0, end));
    if (end == std::string_view::npos) return UniqueFd(::openat(at, name.c_str(), flags));
    path.remove_prefix(end + 1);
    folder = UniqueFd(::openat(at, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) return {};
    at = folder.get();
  }
}

UniqueFd RootFolder::open_file(std::string_view path) const {
  // Without waiting: a FIFO in the place of a file must not hold anybody up.
  UniqueFd file = open_below(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) return {};
  return file;
}

UniqueFd RootFolder::open_folder(std::string_view path) const {
  return open_below(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

std::vector<FolderEntry> RootFolder::list(std::string_view path, std::size_t limit) const {
  UniqueFd folder = open_folder(path);
  if (!folder) return {};
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::fdopendir(folder.get()), ::closedir);
  if (!open) return {};
  folder.release();
  std::vector<FolderEntry> entries;
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name;
    struct stat about {};
    if (name == "." || name == ".." || entries.size() == limit) continue;
    if (::fstatat(::dirfd(open.get()), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) continue;
    entries.push_back({.name = name,
                       .kind = kind_of(about.st_mode),
                       .bytes = about.st_size,
                       .changed = seconds_of(about.st_mtim)});
  }
  std::ranges::sort(entries, {}, &FolderEntry::name);
  return entries;
}

std::string RootFolder::link_target(std::string_view path) const {
  const std::size_t slash = path.rfind('/');
  const std::string_view parent = slash == path.npos ? "" : path.substr(0, slash);
  const std::string name(slash == path.npos ? path : path.substr(slash + 1));
  const UniqueFd folder = is_plain_path(path) ? open_folder(parent) : UniqueFd();
  char target[NAME_MAX + 1];
  if (!folder) return "";
  const ssize_t length = ::readlinkat(folder.get(), name.c_str(), target, sizeof target);
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : "";
}

std::optional<std::string> RootFolder::read(std::string_view path, std::size_t limit) const {
  const UniqueFd file = open_file(path);
  if (!file) return std::nullopt;
  std::string text;
  char block[16384];
  while (text.size() < limit) {
    const ssize_t got = ::read(file.get(), block, std::min(sizeof block, limit - text.size()));
    if (got <= 0) break;
    text.append(block, static_cast<std::size_t>(got));
  }
  return text;
}

}  // namespace lockstep
