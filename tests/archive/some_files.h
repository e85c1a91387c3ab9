#pragma once

#include <string>
#include <vector>

#include "archive/safetensors.h"
#include "archive/snapshot_directory.h"
#include "archive/snapshot_writer.h"
#include "archive/state_file.h"

namespace lockstep::testing {

/// The files of a small snapshot whose content depends on the step.
class SomeFiles {
 public:
  explicit SomeFiles(std::int64_t step, std::int64_t bytes = 3000)
      : layout_(lay_out_safetensors(
            std::vector<TensorInfo>{
                {.name = "weight", .type = ElementType::uint8, .shape = {bytes}}},
            {{"format", "pt"}})),
        data_(layout_.data_bytes, static_cast<char>('a' + step % 26)),
        state_(format_state_file({{"model", {.values = {{"step", step}}}}})) {}

  std::vector<SnapshotFile> files() const {
    const auto text = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    return {{.name = "model.safetensors",
             .bytes = layout_.file_bytes(),
             .produce =
                 [this, text](const SnapshotFile::Append& append) {
                   append(text(layout_.header));
                   append(text(data_));
                 }},
            {.name = kStateName,
             .bytes = state_.size(),
             .produce = [this, text](const auto& append) { append(text(state_)); }}};
  }

 private:
  SafetensorsLayout layout_;
  std::string data_;
  std::string state_;
};

inline std::int64_t next_sequence(const std::string& directory) {
  const auto found = find_snapshots(directory);
  return found.empty() || !found.front().manifest ? 1 : found.front().manifest->sequence + 1;
}

inline void save_some(const std::string& directory, std::int64_t step,
                      const WriteOptions& options = {}, std::int64_t bytes = 3000,
                      bool best = false) {
  const SomeFiles content(step, bytes);
  write_snapshot(
      directory,
      {.step = step, .epoch = 1, .sequence = next_sequence(directory), .slots = 2, .best = best},
      content.files(), options);
}

}  // namespace lockstep::testing
