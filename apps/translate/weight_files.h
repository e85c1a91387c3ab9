#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/optimizer.h"
#include "lockstep/snapshot.h"

namespace translate {

/// The tutorial's files, one an epoch: DIRECTORY/tmodel_NN.pt, NN counted from 00, with the keys
/// epoch, model_state_dict, optimizer_state_dict, global_step and wandb_run_id.
struct WeightFile {
  std::int64_t epoch = 0;  // that had been finished, counted from 0
  std::int64_t global_step = 0;
  std::string wandb_run_id = {};  // empty: the file has none
  lockstep::State model = {};
};

std::string weight_file_path(const std::string& directory, std::int64_t epoch);

/// The number of the last epoch that has a file.
std::optional<std::int64_t> newest_weight_file(const std::string& directory);

/// Of a snapshot at the end of an epoch. Throws SystemError.
void write_weight_file(const std::string& directory, const lockstep::Snapshot& snapshot,
                       const std::string& wandb_run_id);

/// Throws InvalidArgument, with the file's name, for what is no such file, and SystemError.
WeightFile read_weight_file(const std::string& path);

/// What a run goes on from.
std::shared_ptr<lockstep::Snapshot> snapshot_of_weight_file(const std::string& path,
                                                            const lockstep::Optimizer& optimizer);

}  // namespace translate
