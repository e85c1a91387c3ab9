#include "run_directory.h"

#include <filesystem>

#include "command_line.h"
#include "core/durable_file.h"
#include "lockstep/error.h"
#include "weight_files.h"

namespace translate {
namespace {

namespace fs = std::filesystem;
using lockstep::concat;

}  // namespace

Options RunDirectory::stored_options() const {
  return read_stored_options(config());
}

void RunDirectory::write(const Options& options, const Vocabulary& source,
                         const Vocabulary& target) const {
  program_runs::make_folder(path());
  source.save(path(), options.lang_src);
  target.save(path(), options.lang_tgt);
  lockstep::write_durably(config(), effective_config(options).dump(2) + "\n");
}

std::string RunDirectory::set_aside_after(std::int64_t epoch) const {
  const auto newest = newest_weight_file(weights());
  if (!newest_snapshot() && newest.value_or(0) <= epoch) return {};
  std::string folder;
  for (int number = 1; folder.empty() || fs::exists(folder); ++number) {
    folder = concat(path(), "/set_aside_", number);
  }
  program_runs::make_folder(folder + "/weights");
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
