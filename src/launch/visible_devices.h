#pragma once

#include <string>
#include <vector>

#include "launch/gpu.h"

namespace lockstep {

/// The GPUs that a process sees when CUDA_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES,
/// ROCR_VISIBLE_DEVICES) has this value, in the order that it gives them.
///
/// The rules are CUDA's, which never complains: entries are numbers, or beginnings of UUIDs that
/// fit one GPU only; the first entry that is neither, such as -1, ends the list; a GPU that is
/// named twice hides all. Of MIG devices a process sees one, the first. Numbers count in the order
/// of bus addresses; CUDA's own default puts the fastest GPU first, which differs only where GPUs
/// of several kinds are mixed (CUDA_DEVICE_ORDER=PCI_BUS_ID makes it the same).
std::vector<Gpu> visible_devices(const std::vector<Gpu>& all, const std::string& list);

}  // namespace lockstep
