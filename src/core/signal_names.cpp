#include "core/signal_names.h"

#include <csignal>
#include <cstring>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// "RTMIN", "RTMIN+2" or "RTMAX-1". How many there are is known only when the program runs.
std::optional<int> real_time_signal(std::string_view name) {
  const std::string_view base = name.substr(0, 5);
  if (base != "RTMIN" && base != "RTMAX") {
    return std::nullopt;
  }
  int number = base == "RTMIN" ? SIGRTMIN : SIGRTMAX;
  const std::string_view rest = name.substr(5);
  if (!rest.empty()) {
    const std::optional<int> offset = parse_integer<int>(rest.substr(1));
    if (rest[0] != (base == "RTMIN" ? '+' : '-') || !offset || *offset < 0 ||
        *offset > SIGRTMAX - SIGRTMIN) {
      return std::nullopt;
    }
    number += base == "RTMIN" ? *offset : -*offset;
  }
  return number;
}

}  // namespace

std::string signal_name(int number) {
  if (const char* name = ::sigabbrev_np(number)) {
    return concat("SIG", name);
  }
  if (number >= SIGRTMIN && number <= SIGRTMAX) {
    return number == SIGRTMIN ? "SIGRTMIN" : concat("SIGRTMIN+", number - SIGRTMIN);
  }
  return concat("signal ", number);
}

std::optional<int> signal_number(std::string_view name) {
  if (name.starts_with("SIG")) {
    name.remove_prefix(3);
  }
  for (int number = 1; number < NSIG; ++number) {
    const char* candidate = ::sigabbrev_np(number);
    if (candidate != nullptr && name == candidate) {
      return number;
    }
  }
  if (name == "IOT") {
    return SIGIOT;
  }
  if (name == "IO") {
    return SIGIO;
  }
  if (name == "CLD") {
    return SIGCHLD;
  }
  return real_time_signal(name);
}

}  // namespace lockstep
