#pragma once

#include <sstream>
#include <string>

namespace lockstep::kernels::on_cpu {

/// A message of its parts.
template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

inline std::string hex(unsigned long long number) {
  std::ostringstream text;
  text << "0x" << std::hex << number;
  return text.str();
}

}  // namespace lockstep::kernels::on_cpu
