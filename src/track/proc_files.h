#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// What Linux counts, as its files in /proc say. What a text does not tell is 0.
struct HostCounters {
  double busy_seconds = 0, all_seconds = 0;              // of all CPUs
  std::uint64_t memory_total = 0, memory_available = 0;  // bytes
  std::uint64_t received = 0, sent = 0;                  // bytes, without loopback
  std::uint64_t disk_read = 0, disk_written = 0;         // bytes
  double load = 0;                                       // of the last minute
};

struct ProcessCounters {
  double cpu_seconds = 0;
  std::uint64_t resident = 0;           // bytes
  std::uint64_t read = 0, written = 0;  // bytes that went to or came from disks
  int threads = 0;
};

/// Of /proc/stat, /proc/meminfo, /proc/net/dev, /proc/diskstats, /proc/loadavg.
void parse_stat(std::string_view text, HostCounters& host);
void parse_memory(std::string_view text, HostCounters& host);
void parse_network(std::string_view text, HostCounters& host);
void parse_disks(std::string_view text, HostCounters& host);

/// Of /proc/self/stat and /proc/self/io.
void parse_process_stat(std::string_view text, ProcessCounters& process);
void parse_process_io(std::string_view text, ProcessCounters& process);

HostCounters read_host_counters(const std::string& proc = "/proc");
ProcessCounters read_process_counters(const std::string& proc = "/proc");

}  // namespace lockstep
