#pragma once

#include <map>
#include <span>
#include <string>

#include "archive/tensor_view.h"

namespace lockstep {

/// Writes a file: under a temporary name, synced, read back and renamed. Throws InvalidArgument or
/// SystemError.
void write_safetensors_file(const std::string& path, std::span<const TensorView> tensors,
                            const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
