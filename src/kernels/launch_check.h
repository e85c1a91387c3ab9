#pragma once

#include <cstdint>

namespace lockstep::kernels {

/// Throws std::runtime_error naming the kernel where its launch was refused.
void check_launch(const char* kernel);

/// Throws std::invalid_argument with the condition's words.
void require(bool condition, const char* kernel, const char* words);

}  // namespace lockstep::kernels
