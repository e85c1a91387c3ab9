#pragma once

#include <string>

#include "archive/file_content.h"
#include "archive/value.h"

namespace lockstep {

struct TorchReadOptions {
  /// Compare the checksums of all storages that are used, which reads them.
  bool check = true;
};

/// What torch.save has written into a file. Tensors refer to `content`, which they keep alive.
/// Nothing is ever executed. Throws InvalidArgument, also for the formats of before 2020.
Value read_torch_archive(const FileContent& content, const TorchReadOptions& options = {});

/// Writes a file that torch.load(weights_only=True) reads: under a temporary name, synced, read
/// back and renamed. Throws InvalidArgument or SystemError.
void write_torch_archive(const std::string& path, const Value& value);

}  // namespace lockstep
