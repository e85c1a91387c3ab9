#include "track/wandb_code.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostCodeFiles = 1000;
constexpr std::uintmax_t kLargestCodeFile = 1 << 20;
constexpr std::array<std::string_view, 18> kCodeEndings{
    ".py", ".cpp", ".cc", ".c",  ".h",     ".hpp",  ".cu",  ".cuh",  ".inl",
    ".rs", ".go",  ".sh", ".md", ".cmake", ".toml", ".yml", ".yaml", ".ipynb"};
constexpr std::array<std::string_view, 6> kMadeFolders{"wandb",       "build", "outputs",
                                                       "__pycache__", "venv",  "node_modules"};

bool is_code(const fs::path& path) {
  const std::string ending = path.extension().string(), name = path.filename().string();
  return std::ranges::find(kCodeEndings, ending) != kCodeEndings.end() ||
         name == "CMakeLists.txt" || name == "Makefile" || name == "requirements.txt";
}

}  // namespace

std::vector<std::string> code_files(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code problem;
  const auto skip = fs::directory_options::skip_permission_denied;
  for (auto entry = fs::recursive_directory_iterator(folder, skip, problem);
       !problem && entry != fs::recursive_directory_iterator(); entry.increment(problem)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    const bool is_made = std::ranges::find(kMadeFolders, name) != kMadeFolders.end();
    if (entry->is_directory(ignored)) {
      if (is_made || name.starts_with('.') || entry->is_symlink(ignored)) {
        entry.disable_recursion_pending();
      }
      continue;
    }
    if (entry->is_symlink(ignored) || !entry->is_regular_file(ignored)) continue;
    if (!is_code(entry->path()) || entry->file_size(ignored) > kLargestCodeFile) continue;
    found.push_back(entry->path().lexically_relative(folder).string());
    if (found.size() == kMostCodeFiles) break;
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace lockstep
