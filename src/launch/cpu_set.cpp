#include "launch/cpu_set.h"

#include <sched.h>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <optional>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
constexpr int kMostCpus =
    1 << 20;  // more than any kernel has; keeps a bad file from filling memory

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n");
  return begin == std::string_view::npos
             ? std::string_view()
             : text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

void add_range(std::string_view range, std::string_view text, CpuSet& cpus) {
  const std::size_t dash = range.find('-');
  const auto first = parse_integer<int>(range.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : parse_integer<int>(range.substr(dash + 1));
  if (!first || !last || *first < 0 || *last < *first || *last >= kMostCpus) {
    throw InvalidArgument(
        concat("'", text, "' is no list of processors; one looks like 0-2,4,6-7"));
  }
  for (int cpu = *first; cpu <= *last; ++cpu) {
    cpus.insert(cpus.end(), cpu);
  }
}

}  // namespace

CpuSet parse_cpu_list(std::string_view text) {
  CpuSet cpus;
  const std::string_view list = trimmed(text);
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    add_range(list.substr(begin, end - begin), list, cpus);
    begin = end + 1;
  }
  return cpus;
}

std::string format_cpu_list(const CpuSet& cpus) {
  std::string text;
  for (auto first = cpus.begin(); first != cpus.end();) {
    auto last = first;
    auto next = std::next(first);
    while (next != cpus.end() && *next == *last + 1) {
      last = next++;
    }
    text += text.empty() ? "" : ",";
    text += std::to_string(*first);
    if (last != first) {
      text.append("-").append(std::to_string(*last));
    }
    first = next;
  }
  return text;
}

CpuSet allowed_cpus() {
  // cpu_set_t ends at 1024 processors; the kernel refuses a mask that is smaller than its own.
  for (AffinityMask mask(1024 / kBits);; mask.resize(mask.size() * 2)) {
    const std::size_t bytes = mask.size() * sizeof(unsigned long);
    if (::sched_getaffinity(0, bytes, reinterpret_cast<cpu_set_t*>(mask.data())) == 0) {
      CpuSet cpus;
      for (std::size_t bit = 0; bit < mask.size() * kBits; ++bit) {
        if ((mask[bit / kBits] >> (bit % kBits) & 1) != 0) {
          cpus.insert(cpus.end(), static_cast<int>(bit));
        }
      }
      return cpus;
    }
    if (errno != EINVAL || mask.size() * kBits >= kMostCpus) {
      throw_errno("cannot ask which processors this process may use");
    }
  }
}

AffinityMask affinity_mask(const CpuSet& cpus) {
  AffinityMask mask(cpus.empty() ? 1 : static_cast<std::size_t>(*cpus.rbegin()) / kBits + 1);
  for (const int cpu : cpus) {
    mask[static_cast<std::size_t>(cpu) / kBits] |= 1UL << (static_cast<std::size_t>(cpu) % kBits);
  }
  return mask;
}

bool set_affinity(pid_t thread, const AffinityMask& mask) {
  return ::sched_setaffinity(thread, mask.size() * sizeof(unsigned long),
                             reinterpret_cast<const cpu_set_t*>(mask.data())) == 0;
}

}  // namespace lockstep
