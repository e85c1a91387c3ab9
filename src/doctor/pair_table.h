#pragma once

#include <string>
#include <vector>

#include "doctor/pair_result.h"

namespace lockstep {

/// Latency and bandwidth from each node (rows) to each (columns), over the addresses that a job
/// would use; with more than a dozen nodes, the ranges and the slowest pairs. Empty without pairs.
std::string pair_table(const std::vector<std::string>& nodes, const std::vector<PairResult>& pairs);

/// "9.8 Gbit/s", "87 Mbit/s".
std::string in_bits(double bytes_per_second);

/// "43 us", "1.2 ms".
std::string in_time(double microseconds);

}  // namespace lockstep
