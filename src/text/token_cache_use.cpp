#include "text/token_cache_use.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <vector>

#include "lockstep/error.h"
#include "text/files.h"
#include "text/token_cache_files.h"
#include "text/token_cache_maker.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

struct FoundCache {
  fs::path folder;
  std::int64_t bytes = 0;
  fs::file_time_type used;
};

std::vector<FoundCache> find_caches(const fs::path& directory) {
  std::vector<FoundCache> caches;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (!entry.path().filename().string().starts_with(kCachePrefix)) continue;
    std::error_code failed;
    FoundCache cache{.folder = entry.path()};
    cache.used = fs::last_write_time(entry.path() / kCacheDescription, failed);
    if (failed) continue;
    for (const auto& file : fs::directory_iterator(entry.path(), ignored)) {
      const auto size = file.file_size(failed);
      if (!failed) cache.bytes += static_cast<std::int64_t>(size);
    }
    caches.push_back(std::move(cache));
  }
  return caches;
}

std::string source_of(const fs::path& folder) {
  try {
    const std::string file = (folder / kCacheDescription).string();
    return parse_description(read_file(file, 1 << 20), file).source;
  } catch (const Error&) {
    return "";
  }
}

// Under another name first, so that nobody finds a part of it, and what is left after a crash is
// known for what it is.
bool remove_unless_used(const fs::path& folder) {
  const UniqueFd file(::open((folder / kCacheDescription).c_str(), O_RDWR | O_CLOEXEC));
  if (!file || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  const fs::path target =
      folder.parent_path() / concat(leftover_prefix(), ::getpid(), "-", folder.filename().string());
  std::error_code error;
  fs::rename(folder, target, error);
  if (error) return false;
  fs::remove_all(target, error);
  return true;
}

}  // namespace

std::shared_ptr<const UniqueFd> begin_use(const std::string& folder) {
  const std::string path = concat(folder, "/", kCacheDescription);
  auto file = std::make_shared<const UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!*file) throw_errno(concat("cannot open '", path, "'"));
  // Where there are no locks nothing can be removed either: remove_unless_used() asks for one.
  while (::flock(file->get(), LOCK_SH) != 0 && errno == EINTR) {
  }
  struct stat held = {}, named = {};
  if (::fstat(file->get(), &held) != 0 || ::stat(path.c_str(), &named) != 0 ||
      held.st_ino != named.st_ino) {
    throw InvalidArgument(concat("'", folder, "' was removed while it was being opened"));
  }
  ::futimens(file->get(), nullptr);  // what others have made may not be ours to touch
  return file;
}

void remove_old_caches(const TokenCacheOptions& options, const std::string& newest) {
  if (options.max_bytes <= 0) return;
  std::vector<FoundCache> caches = find_caches(options.directory);
  std::int64_t sum = 0;
  for (const FoundCache& cache : caches) sum += cache.bytes;
  std::ranges::sort(caches, {}, &FoundCache::used);
  for (const FoundCache& cache : caches) {
    if (sum <= options.max_bytes) return;
    if (cache.folder.filename() == newest) continue;
    const std::string source = source_of(cache.folder);
    const auto unused = fs::file_time_type::clock::now() - cache.used;
    if (!remove_unless_used(cache.folder)) continue;
    sum -= cache.bytes;
    if (!options.removed) continue;
    options.removed({.folder = cache.folder.string(),
                     .source = source,
                     .bytes = cache.bytes,
                     .unused_for = std::chrono::duration_cast<std::chrono::seconds>(unused)});
  }
}

}  // namespace lockstep
