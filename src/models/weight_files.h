#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// The path of a file in a folder, which may be given with a slash at its end.
std::string in_folder(const std::string& directory, const std::string& name);

/// The files with a model's weights in a directory of Hugging Face's layout.
struct WeightFiles {
  std::string source;              // the single file, or the index of the shards
  std::vector<std::string> files;  // paths
};

/// Looks for model.safetensors, model.safetensors.index.json, pytorch_model.bin and
/// pytorch_model.bin.index.json, in this order, as `transformers` does. Throws InvalidArgument for
/// a directory without any, for an index that is damaged, and for one that names a file that is not
/// there.
WeightFiles find_weight_files(const std::string& directory);

/// All tensors of one file by name; its end says the format. Throws InvalidArgument, with the file.
std::map<std::string, at::Tensor> read_weights(const std::string& file);

/// Writes model.safetensors, or shards of at most `max_shard_bytes` (a tensor is never cut) and
/// their index, and removes what an earlier model left there under names that would be read first.
void write_weights(const std::string& directory, const std::map<std::string, at::Tensor>& tensors,
                   std::int64_t max_shard_bytes);

}  // namespace lockstep
