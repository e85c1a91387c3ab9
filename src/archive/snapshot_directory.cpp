#include "archive/snapshot_directory.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <tuple>

#include "archive/file_content.h"
#include "core/checksum.h"
#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "step_";
// Left by a replacement that was cut off on a file system that cannot exchange two names.
constexpr std::string_view kReplaced = ".replaced";
constexpr std::size_t kLongestManifest = 64 << 20;

void read_manifest_of(FoundSnapshot& found) {
  try {
    Manifest manifest =
        parse_manifest(read_text_file(concat(found.path, "/", kManifestName), kLongestManifest));
    if (manifest.step != found.step) {
      found.problem = concat("its manifest is that of step ", manifest.step);
      return;
    }
    found.manifest = std::move(manifest);
  } catch (const Error& error) {
    found.problem = error.what();
  }
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::string compare_checksum(const std::string& path, const Manifest::File& expected) {
  const OpenedFile file = open_to_read(path);
  if (file.bytes != expected.bytes) {
    return concat(last_part(path), " has ", file.bytes, " bytes instead of ", expected.bytes);
  }
  std::vector<std::byte> buffer(std::min<std::uint64_t>(4 << 20, file.bytes));
  Checksum checksum;
  for (std::uint64_t offset = 0; offset < file.bytes;) {
    const auto part =
        std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), file.bytes - offset));
    read_exactly(file.fd.get(), offset, part, path);
    checksum.update(part);
    offset += part.size();
  }
  if (checksum.value() == expected.checksum) return "";
  return concat(last_part(path), " is damaged: its checksum is ", checksum_text(checksum.value()),
                " instead of ", checksum_text(expected.checksum));
}

}  // namespace

std::string snapshot_name(std::int64_t step) {
  return concat(kPrefix, step);
}

std::optional<std::int64_t> step_of_name(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kPrefix)) return std::nullopt;
  rest.remove_prefix(kPrefix.size());
  if (rest.ends_with(kReplaced)) rest.remove_suffix(kReplaced.size());
  const auto step = parse_integer<std::int64_t>(rest);
  // "step_007" is not a name that this library gives.
  return step && *step >= 0 && std::to_string(*step) == rest ? step : std::nullopt;
}

std::vector<FoundSnapshot> find_snapshots(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(directory.c_str()), ::closedir);
  if (!folder) {
    if (errno == ENOENT) return {};
    throw_errno(concat("cannot read the directory '", directory, "'"));
  }
  std::vector<FoundSnapshot> found;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    // A directory that is only half read would make an older snapshot the newest.
    if (entry == nullptr && errno != 0) {
      throw_errno(concat("cannot read the directory '", directory, "'"));
    }
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    const auto step = step_of_name(name);
    if (!step) continue;
    found.push_back({.name = name, .path = concat(directory, "/", name), .step = *step});
    read_manifest_of(found.back());
  }
  std::sort(found.begin(), found.end(), [](const FoundSnapshot& a, const FoundSnapshot& b) {
    const auto rank = [](const FoundSnapshot& each) {
      return std::tuple(each.manifest ? 1 : 0, each.manifest ? each.manifest->sequence : 0,
                        each.step, each.name);
    };
    return rank(a) > rank(b);
  });
  return found;
}

FoundSnapshot open_snapshot(const std::string& path) {
  FoundSnapshot found{.name = last_part(path), .path = path};
  found.manifest =
      parse_manifest(read_text_file(concat(path, "/", kManifestName), kLongestManifest));
  found.step = found.manifest->step;
  return found;
}

std::string find_missing_files(const FoundSnapshot& snapshot) {
  if (!snapshot.manifest) return snapshot.problem;
  for (const auto& [name, file] : snapshot.manifest->files) {
    struct stat status {};
    if (::stat(concat(snapshot.path, "/", name).c_str(), &status) != 0) {
      return concat(name, " is missing");
    }
    if (static_cast<std::uint64_t>(status.st_size) != file.bytes) {
      return concat(name, " has ", status.st_size, " bytes instead of ", file.bytes);
    }
  }
  return "";
}

std::string find_damage(const FoundSnapshot& snapshot) {
  return find_damage(snapshot, 0, 1);
}

std::string find_damage(const FoundSnapshot& snapshot, std::size_t first, std::size_t step) {
  if (!snapshot.manifest) return snapshot.problem;
  std::size_t number = 0;
  for (const auto& [name, file] : snapshot.manifest->files) {
    if (number++ % step != first) continue;
    try {
      const std::string problem = compare_checksum(concat(snapshot.path, "/", name), file);
      if (!problem.empty()) return problem;
    } catch (const Error& error) {
      return error.what();
    }
  }
  return "";
}

std::optional<std::string> read_pointer(const std::string& directory, const std::string& pointer) {
  const std::string path = concat(directory, "/", pointer);
  std::array<char, 256> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  std::string name;
  if (length > 0) {
    name.assign(target.data(), static_cast<std::size_t>(length));
  } else {
    try {  // a file, where the file system has no links
      name = read_text_file(path, target.size());
      while (name.ends_with('\n')) name.pop_back();
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return step_of_name(name) ? std::optional(name) : std::nullopt;
}

}  // namespace lockstep
