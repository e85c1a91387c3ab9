#pragma once

namespace lockstep {

/// Calls each function of the vector library that ATen's operators use, once in a process, before
/// threads do it side by side.
///
/// ATen on x86-64 has MKL compute sin, exp, sqrt and others. In its 2024.2 releases a function
/// chooses its kernel in the first call, and whoever calls it meanwhile may get one of low accuracy
/// (pytorch/pytorch#188792): results that are off by 1e-4 in a first batch, now and then.
void settle_vector_math();

}  // namespace lockstep
