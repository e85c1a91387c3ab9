#pragma once

namespace lockstep::kernels {

// What a build has for the current device: a kernel that it has not cannot be launched, and one
// that is empty there leaves its results as they were. Each device is asked once. These functions
// throw std::runtime_error where the device itself has failed.

/// Whether the kernels were compiled for it.
bool has_device_code();

/// Whether those of Hopper's own instructions were, which sm_90a has and sm_90 has not.
bool has_hopper_code();

}  // namespace lockstep::kernels
