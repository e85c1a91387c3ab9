#pragma once

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep::testing {

/// Bytes that have passed a network interface of this process's namespace, both ways; 0 where it
/// does not exist.
inline std::int64_t link_bytes(const std::string& interface) {
  std::ifstream table("/proc/net/dev");
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;
    const auto begin = line.find_first_not_of(' ');
    if (line.substr(begin, colon - begin) != interface) continue;
    // Received: bytes and seven other counts; then the same of what was sent.
    std::istringstream fields(line.substr(colon + 1));
    std::int64_t received = 0, other = 0, sent = 0;
    fields >> received;
    for (int field = 0; field < 7; ++field) fields >> other;
    fields >> sent;
    return received + sent;
  }
  return 0;
}

}  // namespace lockstep::testing
