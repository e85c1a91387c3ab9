#include "epoch_files.h"

#include <cstdio>
#include <filesystem>

#include "lockstep/error.h"
#include "lockstep/snapshot.h"
#include "weight_files.h"

namespace translate {

void EpochFiles::write(std::int64_t step, bool only_missing) const {
  if (world_.rank() != 0) return;
  const std::string folder = lockstep::concat(directory_.snapshots(), "/step_", step);
  if (only_missing && !std::filesystem::exists(folder)) return;
  try {
    const lockstep::Snapshot snapshot = lockstep::read_snapshot(folder);
    const nlohmann::json& place = snapshot.parts.at("trainer").values;
    if (place.at("step_in_epoch") != 0 || place.at("epoch") == 0) return;  // within an epoch
    const std::string path =
        weight_file_path(directory_.weights(), place.at("epoch").get<std::int64_t>() - 1);
    if (only_missing && std::filesystem::exists(path)) return;
    write_weight_file(directory_.weights(), snapshot, wandb_run_id_);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "translate: the file of the epoch at step %lld is not written: %s\n",
                 static_cast<long long>(step), error.what());
  }
}

}  // namespace translate
