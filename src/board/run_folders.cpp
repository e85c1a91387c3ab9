#include "board/run_folders.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cctype>

#include "board/bounded_json.h"
#include "core/parse_integer.h"

namespace lockstep {
namespace {

using nlohmann::json;
using Kind = FolderEntry::Kind;

constexpr std::int64_t kMostLogBytes = 1 << 20;
constexpr std::int64_t kMostSearched = 64 << 20;  // in one request; the answer says where it ended
constexpr std::size_t kMostMatches = 500;

// "" where the snapshot is whole.
std::string damage_of(const RootFolder& root, const std::string& folder, const json& manifest) {
  const auto files = manifest.find("files");
  if (files == manifest.end()) return "its manifest names no files";
  const auto entries = root.list(folder);
  if (!files->is_object()) return "its manifest names no files";
  for (const auto& [name, about] : files->items()) {
    const auto entry = std::ranges::find(entries, name, &FolderEntry::name);
    if (entry == entries.end()) return name + " is missing";
    if (about.is_object() && whole_of(about, "bytes") != entry->bytes) {
      return name + " has another length than its manifest says";
    }
  }
  return "";
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& letter : lower) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return lower;
}

// Lines that have the word, each with its place, from `offset` on.
json search_log(int file, std::int64_t size, const LogQuery& query) {
  const std::string wanted = lower_case(query.find);
  json matches = json::array();
  std::int64_t at = std::max<std::int64_t>(0, query.offset);
  const std::int64_t end = std::min(size, at + kMostSearched);
  std::string text;
  for (std::int64_t read = at; read < end && matches.size() < kMostMatches;) {
    const std::size_t had = text.size();
    text.resize(had + kMostLogBytes);
    const ssize_t got = ::pread(file, text.data() + had, kMostLogBytes, read);
    text.resize(had + static_cast<std::size_t>(std::max<ssize_t>(0, got)));
    if (got <= 0) break;
    read += got;
    const bool last = read >= size;
    std::string_view rest = text;
    while (!rest.empty() && matches.size() < kMostMatches) {
      std::size_t newline = rest.find('\n');
      if (newline == rest.npos && !last && rest.size() < kMostLogBytes) break;
      newline = std::min(newline, rest.size());
      const std::string_view line = rest.substr(0, newline);
      if (lower_case(line).find(wanted) != std::string::npos) {
        matches.push_back({{"offset", at}, {"text", line.substr(0, 4096)}});
      }
      const std::size_t taken = std::min(rest.size(), newline + 1);
      rest.remove_prefix(taken);
      at += static_cast<std::int64_t>(taken);
    }
    text.erase(0, text.size() - rest.size());
  }
  return {{"matches", std::move(matches)}, {"searched_to", at}, {"size", size}};
}

}  // namespace

json snapshots_of(const RootFolder& root, const std::string& run) {
  std::vector<json> list;
  const std::string folder = join_path(run, "snapshots");
  const std::string latest = root.link_target(join_path(folder, "latest"));
  const std::string best = root.link_target(join_path(folder, "best"));
  for (const FolderEntry& entry : root.list(folder)) {
    if (entry.kind != Kind::folder || entry.name.starts_with('.')) continue;
    const std::string path = join_path(folder, entry.name);
    const auto text = root.read(join_path(path, "manifest.json"), std::size_t{8} << 20);
    const auto manifest = text ? parse_bounded(*text) : std::nullopt;
    std::int64_t bytes = 0;
    for (const FolderEntry& file : root.list(path)) bytes += file.bytes;
    const bool readable = manifest && manifest->is_object();
    list.push_back(json{{"name", entry.name},
                        {"step", readable ? whole_of(*manifest, "step") : 0},
                        {"time", entry.changed},
                        {"bytes", bytes},
                        {"latest", entry.name == latest},
                        {"best", entry.name == best},
                        {"damage", readable ? damage_of(root, path, *manifest)
                                            : "its manifest is missing or cannot be read"}});
  }
  std::ranges::sort(list, std::greater(), [](const json& each) { return whole_of(each, "step"); });
  return list;
}

json logs_of(const RootFolder& root, const std::string& run) {
  json list = json::array();
  const std::string logs = join_path(run, "logs");
  for (const FolderEntry& attempt : root.list(logs)) {
    if (attempt.kind != Kind::folder) continue;
    for (const FolderEntry& rank : root.list(join_path(logs, attempt.name))) {
      if (rank.kind != Kind::folder) continue;
      const std::string below = join_path(attempt.name, rank.name);
      for (const FolderEntry& file : root.list(join_path(logs, below))) {
        if (file.kind != Kind::file) continue;
        const auto number = parse_integer<int>(rank.name);
        list.push_back({{"file", join_path(below, file.name)},
                        {"attempt", attempt.name},
                        {"rank", number ? json(*number) : json(rank.name)},
                        {"name", file.name},
                        {"bytes", file.bytes},
                        {"changed", file.changed}});
      }
    }
  }
  return list;
}

json read_log(const RootFolder& root, const std::string& run, const LogQuery& query) {
  const UniqueFd file = root.open_file(join_path(join_path(run, "logs"), query.file));
  struct stat about {};
  if (query.file.empty() || !file || ::fstat(file.get(), &about) != 0) return nullptr;
  const std::int64_t size = about.st_size;
  if (!query.find.empty()) return search_log(file.get(), size, query);
  const std::int64_t bytes = std::clamp<std::int64_t>(query.bytes, 1, kMostLogBytes);
  const bool from_end = query.offset < 0;
  std::int64_t begin = from_end ? std::max<std::int64_t>(0, size - bytes) : query.offset;
  std::string text(static_cast<std::size_t>(bytes), '\0');
  const ssize_t got = begin < size ? ::pread(file.get(), text.data(), text.size(), begin) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, got)));
  if (from_end && begin > 0) {
    // The first line may be cut.
    const std::size_t newline = text.find('\n');
    const std::size_t cut = newline == text.npos ? 0 : newline + 1;
    text.erase(0, cut);
    begin += static_cast<std::int64_t>(cut);
  }
  return {{"offset", begin},
          {"next", begin + static_cast<std::int64_t>(text.size())},
          {"size", size},
          {"text", std::move(text)}};
}

}  // namespace lockstep
