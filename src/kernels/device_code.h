#pragma once

namespace lockstep::kernels {

// What a build has for the current device. A launch of a kernel that it has not fails; one of a
// kernel that is empty there leaves its results as they were. Both throw std::runtime_error where
// the device itself has failed. Asked once a device.

/// Whether the kernels were compiled for it.
bool has_device_code();

/// Whether those of Hopper's own instructions were, which sm_90a has and sm_90 has not.
bool has_hopper_code();

}  // namespace lockstep::kernels
