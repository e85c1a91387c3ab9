#include "track/proc_files.h"

#include <unistd.h>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace lockstep {
namespace {

std::string proc_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename Visit>
void for_each_line(std::string_view text, Visit visit) {
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) visit(line);
}

double ticks_per_second() {
  static const double ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  return ticks > 0 ? ticks : 100;
}

// A disk, and not a part of one or something made of others, which would be counted twice.
bool is_whole_disk(const std::string& name) {
  if (name.starts_with("loop") || name.starts_with("ram") || name.starts_with("dm-") ||
      name.starts_with("md")) {
    return false;
  }
  const bool numbered = name.starts_with("nvme") || name.starts_with("mmcblk");
  if (numbered) return name.find('p', name.starts_with("mmcblk") ? 6 : 4) == std::string::npos;
  return name.empty() || name.back() < '0' || name.back() > '9';
}

}  // namespace

void parse_stat(std::string_view text, HostCounters& host) {
  for_each_line(text, [&](const std::string& line) {
    if (!line.starts_with("cpu ")) return;
    std::istringstream numbers(line.substr(4));
    std::vector<double> ticks;
    for (double number = 0; ticks.size() < 8 && numbers >> number;) ticks.push_back(number);
    double all = 0;
    for (const double number : ticks) all += number;
    const double idle = ticks.size() >= 5 ? ticks[3] + ticks[4] : 0;
    host.all_seconds = all / ticks_per_second();
    host.busy_seconds = (all - idle) / ticks_per_second();
  });
}

void parse_memory(std::string_view text, HostCounters& host) {
  for_each_line(text, [&](const std::string& line) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t kilobytes = 0;
    if (!(fields >> name >> kilobytes)) return;
    if (name == "MemTotal:") host.memory_total = 1024 * kilobytes;
    if (name == "MemAvailable:") host.memory_available = 1024 * kilobytes;
  });
}

void parse_network(std::string_view text, HostCounters& host) {
  for_each_line(text, [&](const std::string& line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) return;
    const std::size_t begin = line.find_first_not_of(' ');
    if (line.substr(begin, colon - begin) == "lo") return;
    std::istringstream numbers(line.substr(colon + 1));
    std::vector<std::uint64_t> counts;
    for (std::uint64_t number = 0; numbers >> number;) counts.push_back(number);
    if (counts.size() < 9) return;
    host.received += counts[0];
    host.sent += counts[8];
  });
}

void parse_disks(std::string_view text, HostCounters& host) {
  for_each_line(text, [&](const std::string& line) {
    std::istringstream fields(line);
    std::string major, minor, name;
    std::uint64_t reads = 0, merged = 0, sectors_read = 0, ms = 0, writes = 0, merged_writes = 0,
                  sectors_written = 0;
    if (!(fields >> major >> minor >> name >> reads >> merged >> sectors_read >> ms >> writes >>
          merged_writes >> sectors_written)) {
      return;
    }
    if (!is_whole_disk(name)) return;
    host.disk_read += 512 * sectors_read;  // a sector here is that, whatever the disk's
    host.disk_written += 512 * sectors_written;
  });
}

void parse_process_stat(std::string_view text, ProcessCounters& process) {
  // The name of the program, in brackets, may hold anything.
  const std::size_t end = text.rfind(')');
  if (end == std::string_view::npos) return;
  std::istringstream fields{std::string(text.substr(end + 1))};
  std::vector<std::string> values;
  for (std::string value; fields >> value;) values.push_back(value);
  if (values.size() < 22) return;
  const auto number = [&](std::size_t i) { return std::strtod(values[i].c_str(), nullptr); };
  process.cpu_seconds = (number(11) + number(12)) / ticks_per_second();
  process.threads = static_cast<int>(number(17));
  const long page = ::sysconf(_SC_PAGESIZE);
  process.resident = static_cast<std::uint64_t>(number(21)) * static_cast<std::uint64_t>(page);
}

void parse_process_io(std::string_view text, ProcessCounters& process) {
  for_each_line(text, [&](const std::string& line) {
    std::istringstream fields(line);
    std::string name;
    std::uint64_t bytes = 0;
    if (!(fields >> name >> bytes)) return;
    if (name == "read_bytes:") process.read = bytes;
    if (name == "write_bytes:") process.written = bytes;
  });
}

HostCounters read_host_counters(const std::string& proc) {
  HostCounters host;
  parse_stat(proc_text(proc + "/stat"), host);
  parse_memory(proc_text(proc + "/meminfo"), host);
  parse_network(proc_text(proc + "/net/dev"), host);
  parse_disks(proc_text(proc + "/diskstats"), host);
  host.load = std::strtod(proc_text(proc + "/loadavg").c_str(), nullptr);
  return host;
}

ProcessCounters read_process_counters(const std::string& proc) {
  ProcessCounters process;
  parse_process_stat(proc_text(proc + "/self/stat"), process);
  parse_process_io(proc_text(proc + "/self/io"), process);
  return process;
}

}  // namespace lockstep
