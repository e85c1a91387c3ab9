#include "run_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "command_line.h"
#include "core/durable_file.h"
#include "lockstep/error.h"
#include "weight_files.h"

namespace translate {
namespace {

namespace fs = std::filesystem;
using lockstep::concat;

void make_folder(const std::string& path) {
  std::error_code problem;
  fs::create_directories(path, problem);
  if (problem) throw lockstep::SystemError(concat("cannot make ", path, ": ", problem.message()));
}

}  // namespace

bool RunDirectory::has_config() const {
  return fs::exists(path_ + "/config.json");
}

std::optional<std::int64_t> RunDirectory::newest_snapshot() const {
  std::optional<std::int64_t> newest;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(snapshots(), ignored)) {
    const std::string name = entry.path().filename();
    constexpr std::string_view kPrefix = "step_";
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [stopped, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (error == std::errc() && stopped == end) newest = std::max(newest.value_or(0), step);
  }
  return newest;
}

Options RunDirectory::stored_options() const {
  return read_stored_options(path_ + "/config.json");
}

void RunDirectory::write(const Options& options, const Vocabulary& source,
                         const Vocabulary& target) const {
  make_folder(path_);
  source.save(path_, options.lang_src);
  target.save(path_, options.lang_tgt);
  lockstep::write_durably(path_ + "/config.json", effective_config(options).dump(2) + "\n");
}

std::string RunDirectory::set_aside_after(std::int64_t epoch) const {
  const auto newest = newest_weight_file(weights());
  if (!newest_snapshot() && newest.value_or(0) <= epoch) return {};
  std::string folder;
  for (int number = 1; folder.empty() || fs::exists(folder); ++number) {
    folder = concat(path_, "/set_aside_", number);
  }
  make_folder(folder + "/weights");
  const auto move = [](const std::string& from, const std::string& to) {
    std::error_code problem;
    if (fs::exists(from)) fs::rename(from, to, problem);
    if (problem) {
      throw lockstep::SystemError(concat("cannot move ", from, ": ", problem.message()));
    }
  };
  move(snapshots(), folder + "/snapshots");
  for (std::int64_t later = epoch + 1; later <= newest.value_or(0); ++later) {
    move(weight_file_path(weights(), later), weight_file_path(folder + "/weights", later));
  }
  return folder;
}

lockstep::TransformerConfig model_config(const Options& options, const Vocabulary& source,
                                         const Vocabulary& target) {
  return {.source_vocab_size = source.size(),
          .target_vocab_size = target.size(),
          .source_seq_len = options.seq_len,
          .target_seq_len = options.seq_len,
          .d_model = options.d_model,
          .layers = options.layers,
          .heads = options.heads,
          .d_ff = options.d_ff,
          .dropout = options.dropout,
          .pad_id = kPad};
}

}  // namespace translate
