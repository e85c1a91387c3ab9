#include "hub.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

#include "lockstep/error.h"

namespace train_llm {
namespace {

namespace fs = std::filesystem;
using lockstep::concat;
using lockstep::Environment;
using lockstep::InvalidArgument;

std::string variable(const Environment& environment, std::string_view name) {
  return environment.get(name).value_or("");
}

// As huggingface_hub finds it.
fs::path hugging_face_home(const Environment& environment) {
  const std::string home = variable(environment, "HF_HOME");
  if (!home.empty()) return home;
  const std::string cache = variable(environment, "XDG_CACHE_HOME");
  if (!cache.empty()) return fs::path(cache) / "huggingface";
  return fs::path(variable(environment, "HOME")) / ".cache" / "huggingface";
}

fs::path hub_cache(const Environment& environment) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    const std::string path = variable(environment, name);
    if (!path.empty()) return path;
  }
  return hugging_face_home(environment) / "hub";
}

std::string replace_slashes(const std::string& name, std::string_view by) {
  std::string text;
  for (const char letter : name) {
    if (letter == '/') {
      text += by;
    } else {
      text += letter;
    }
  }
  return text;
}

std::optional<fs::path> newest_folder(const std::vector<fs::path>& folders) {
  std::optional<fs::path> newest;
  std::error_code ignored;
  for (const fs::path& folder : folders) {
    if (!newest || fs::last_write_time(folder, ignored) > fs::last_write_time(*newest, ignored)) {
      newest = folder;
    }
  }
  return newest;
}

std::vector<fs::path> folders_in(const fs::path& parent) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (entry.is_directory(ignored)) folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  return folders;
}

// hub/models--org--name/{refs/main, snapshots/<commit>/...}
std::optional<fs::path> in_hub_cache(HubKind kind, const std::string& name, const fs::path& cache) {
  const char* prefix = kind == HubKind::model ? "models--" : "datasets--";
  const fs::path folder = cache / (prefix + replace_slashes(name, "--"));
  std::ifstream reference(folder / "refs" / "main");
  std::string commit;
  std::error_code ignored;
  if (reference >> commit && fs::is_directory(folder / "snapshots" / commit, ignored)) {
    return folder / "snapshots" / commit;
  }
  return newest_folder(folders_in(folder / "snapshots"));
}

// datasets/org___name/<configuration>/<version>/<hash>/dataset_info.json, of load_dataset().
std::optional<fs::path> in_datasets_cache(const std::string& name, const Environment& environment) {
  fs::path cache = variable(environment, "HF_DATASETS_CACHE");
  if (cache.empty()) cache = hugging_face_home(environment) / "datasets";
  std::vector<fs::path> found;
  std::error_code ignored;
  const fs::path folder = cache / replace_slashes(name, "___");
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
    if (entry.path().filename() == "dataset_info.json") found.push_back(entry.path().parent_path());
  }
  return newest_folder(found);
}

bool could_be_on_hub(const std::string& name) {
  static const std::set<std::string> kOfFiles = {".json", ".jsonl", ".txt",     ".csv",
                                                 ".tsv",  ".gz",    ".parquet", ".arrow"};
  if (kOfFiles.contains(fs::path(name).extension().string())) return false;
  return !name.empty() && name.front() != '/' && name.front() != '.' &&
         std::ranges::count(name, '/') <= 1;
}

}  // namespace

std::string find_local(HubKind kind, const std::string& name, const Environment& environment) {
  std::error_code ignored;
  if (fs::exists(name, ignored)) return name;
  const bool is_model = kind == HubKind::model;
  const char* option = is_model ? "--model-name" : "--dataset-name";
  if (!could_be_on_hub(name)) {
    throw InvalidArgument(concat(option, " is \"", name, "\", and there is no such ",
                                 is_model ? "directory" : "file or directory"));
  }
  const fs::path cache = hub_cache(environment);
  auto found = in_hub_cache(kind, name, cache);
  if (!found && !is_model) found = in_datasets_cache(name, environment);
  if (found) return found->string();
  throw InvalidArgument(concat(
      option, " is \"", name, "\", which is no ", is_model ? "directory" : "file or directory",
      " here and not in the hub's cache, ", cache.string(),
      "; this program fetches nothing: where there is a network, `huggingface-cli download ",
      is_model ? "" : "--repo-type dataset ", name, "` puts it there"));
}

std::string default_cache_dir(const Environment& environment) {
  const std::string cache = variable(environment, "XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/lockstep";
  const std::string home = variable(environment, "HOME");
  if (home.empty()) {
    throw InvalidArgument("neither HOME nor XDG_CACHE_HOME is set; say --cache-dir DIR");
  }
  return home + "/.cache/lockstep";
}

}  // namespace train_llm
