#pragma once

#include <string>

#include "archive/checkpoint.h"

namespace lockstep {

/// Writes a checkpoint in the form that `target` asks for by its name:
///   *.pt, *.pth, *.bin   what torch.load reads: all parts of a snapshot, optimizers in Python's
///   form
///   *.safetensors        one part's tensors
///   anything else        a folder: of a snapshot, one with model.safetensors, as Hugging Face has
///   it;
///                        of a .pt file, a directory of snapshots that gets one more
/// `part` names the part to be taken where there can be only one; empty: "model", or the only one
/// with tensors. Returns what was written, for people. Throws InvalidArgument or SystemError.
std::string convert(const Checkpoint& checkpoint, const std::string& target,
                    const std::string& part);

/// The part that is meant. Throws InvalidArgument, naming those that there are.
const CheckpointPart& choose_part(const Checkpoint& checkpoint, const std::string& part);

}  // namespace lockstep
