#include "text/source_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "text/files.h"
#include "text/json_fields.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kLongestDescription = 64 << 20;
constexpr int kDeepestFolder = 4;

struct Known {
  TextFormat format;
  int rank;  // of several kinds of files in a folder the first is taken
};

std::optional<Known> known_format(const fs::path& path, Tables tables) {
  static const std::map<std::string, Known> formats = {
      {".parquet", {TextFormat::arrow, 0}}, {".arrow", {TextFormat::arrow, 1}},
      {".jsonl", {TextFormat::json, 2}},    {".ndjson", {TextFormat::json, 2}},
      {".json", {TextFormat::json, 2}},     {".tsv", {TextFormat::table, 3}},
      {".txt", {TextFormat::plain, 4}}};
  const auto found = formats.find(path.extension().string());
  if (found == formats.end()) return std::nullopt;
  const bool skipped = found->second.format == TextFormat::table && tables == Tables::ignored;
  return skipped ? std::nullopt : std::optional(found->second);
}

// The split that a name speaks of, in `datasets`' words: of data/train-00000-of-00001.parquet,
// train.
std::optional<std::string> split_of(const fs::path& path) {
  static const std::map<std::string, std::string> words = {
      {"train", "train"},      {"training", "train"}, {"validation", "validation"},
      {"valid", "validation"}, {"val", "validation"}, {"dev", "validation"},
      {"test", "test"},        {"testing", "test"},   {"eval", "test"},
      {"evaluation", "test"}};
  std::optional<std::string> split;
  std::string word;
  for (const char letter : path.string() + "/") {
    if (std::string_view("-_./ ").find(letter) == std::string_view::npos) {
      word.push_back(letter);
      continue;
    }
    // The last word counts: in testbed/train.jsonl it is train.
    if (const auto found = words.find(word); found != words.end()) split = found->second;
    word.clear();
  }
  return split;
}

bool is_description(const std::string& name) {
  static const std::set<std::string> names = {
      "dataset_info.json",     "dataset_infos.json", "state.json",
      "dataset_dict.json",     "config.json",        "tokenizer.json",
      "tokenizer_config.json", "package.json"};
  // cache-*.arrow are what functions made of the data, kept by `datasets` for itself.
  return names.contains(name) || name.starts_with(".") || name.starts_with("cache-");
}

nlohmann::json description(const fs::path& path) {
  return parse_json(read_file(path, kLongestDescription), path);
}

[[noreturn]] void throw_no_split(const std::string& path, const std::string& split,
                                 const std::set<std::string>& splits) {
  std::string list;
  for (const std::string& name : splits) list += (list.empty() ? "" : ", ") + name;
  throw InvalidArgument(
      concat("'", path, "' has no split '", split, "'; it has: ", list.empty() ? "none" : list));
}

// A folder of Dataset.save_to_disk.
std::vector<SourceFile> files_of_saved(const fs::path& folder, const std::string& split) {
  const std::string state_file = (folder / "state.json").string();
  const nlohmann::json state = description(state_file);
  const JsonFields fields(state, state_file, "the file");
  // Who names the folder and no split means what is in it.
  const std::string own = fields.string("_split", "train");
  if (split != own && split != "train") throw_no_split(folder.string(), split, {own});
  std::vector<SourceFile> files;
  for (const nlohmann::json& entry : fields.array("_data_files")) {
    const std::string name = JsonFields(entry, state_file, "_data_files").string("filename");
    if (!fs::is_regular_file(folder / name)) {
      throw InvalidArgument(
          concat("'", folder.string(), "' lacks the file '", name, "' that its state.json names"));
    }
    files.push_back({(folder / name).string(), TextFormat::arrow});
  }
  return files;
}

// A folder of DatasetDict.save_to_disk: a folder for each split.
std::vector<SourceFile> files_of_saved_dict(const fs::path& folder, const std::string& split) {
  const std::string file = (folder / "dataset_dict.json").string();
  const nlohmann::json dict = description(file);
  std::set<std::string> splits;
  for (const nlohmann::json& name : JsonFields(dict, file, "the file").array("splits")) {
    if (name.is_string()) splits.insert(name.get<std::string>());
  }
  if (!splits.contains(split)) throw_no_split(folder.string(), split, splits);
  return files_of_saved(folder / split, split);
}

struct Candidate {
  fs::path path;
  Known known;
  std::optional<std::string> split;
};

// All files of a folder that could be read, of the kind that comes first.
std::vector<Candidate> candidates_in(const fs::path& folder, Tables tables) {
  std::vector<Candidate> found;
  for (auto entry =
           fs::recursive_directory_iterator(folder, fs::directory_options::skip_permission_denied);
       entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory() && (name.starts_with(".") || entry.depth() >= kDeepestFolder)) {
      entry.disable_recursion_pending();
    }
    const auto known = known_format(entry->path(), tables);
    if (!known || is_description(name) || !entry->is_regular_file()) continue;
    found.push_back({entry->path(), *known, split_of(entry->path().lexically_relative(folder))});
  }
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.known.rank != b.known.rank ? a.known.rank < b.known.rank : a.path < b.path;
  });
  const auto end = std::find_if(found.begin(), found.end(), [&](const Candidate& candidate) {
    return candidate.known.rank != found.front().known.rank;
  });
  found.erase(end, found.end());
  return found;
}

std::vector<SourceFile> files_of_folder(const fs::path& folder, const std::string& split,
                                        Tables tables) {
  const std::vector<Candidate> candidates = candidates_in(folder, tables);
  if (candidates.empty()) {
    throw InvalidArgument(concat(
        "'", folder.string(), "' has no data: neither .parquet, .arrow, .jsonl, .json",
        tables == Tables::read ? ", .tsv" : "", " nor .txt files, nor what `datasets` saves"));
  }
  std::set<std::string> splits;
  for (const Candidate& candidate : candidates) {
    if (candidate.split) splits.insert(*candidate.split);
  }
  if (splits.empty()) splits.insert("train");
  std::vector<SourceFile> files;
  for (const Candidate& candidate : candidates) {
    const bool named = splits.size() > 1 || candidate.split.has_value();
    if ((named ? candidate.split.value_or("") : "train") != split) continue;
    files.push_back({candidate.path.string(), candidate.known.format});
  }
  if (files.empty()) throw_no_split(folder.string(), split, splits);
  return files;
}

}  // namespace

std::vector<SourceFile> find_source_files(const std::string& path, const std::string& split,
                                          Tables tables) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    const auto known = known_format(path, tables);
    if (!known) {
      throw InvalidArgument(concat("'", path, "' has no known ending; .json, .jsonl, ",
                                   tables == Tables::read ? ".tsv, " : "",
                                   ".txt, .parquet and .arrow files can be read"));
    }
    const std::string own = split_of(fs::path(path).filename()).value_or("train");
    if (split != own && split != "train") throw_no_split(path, split, {own});
    return {{path, known->format}};
  }
  if (!fs::is_directory(path, ignored)) {
    throw InvalidArgument(concat("the data set '", path, "' does not exist"));
  }
  const fs::path folder = path;
  if (fs::exists(folder / "dataset_dict.json")) return files_of_saved_dict(folder, split);
  if (fs::exists(folder / "state.json")) return files_of_saved(folder, split);
  return files_of_folder(folder, split, tables);
}

}  // namespace lockstep
