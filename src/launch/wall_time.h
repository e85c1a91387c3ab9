#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// Local time with its distance from UTC, which is readable and means the same on every node:
/// "2026-01-02T03:04:05.678+01:00".
std::string wall_time(std::chrono::system_clock::time_point when);

/// The time of day alone, for the front of a line: "03:04:05.678".
std::string clock_time(std::chrono::system_clock::time_point when);

}  // namespace lockstep
