#include "doctor/pair_table.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "launch/terminal_text.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kLargestTable = 12;

std::string formatted(const char* format, double value) {
  std::array<char, 48> text;
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string cell_of(const PairResult* pair) {
  if (pair == nullptr) return "";
  if (!pair->reached()) return "no way";
  if (pair->stalled) return "stalls";
  const std::string latency = in_time(pair->latency_us);
  return pair->bytes_per_second ? concat(latency, ", ", in_bits(*pair->bytes_per_second)) : latency;
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string whole_table(const std::vector<std::string>& nodes,
                        const std::vector<const PairResult*>& pairs) {
  const std::size_t count = nodes.size();
  std::vector<std::vector<std::string>> cells(count + 1, std::vector<std::string>(count + 1));
  for (std::size_t at = 0; at < count; ++at) {
    cells[0][at + 1] = cells[at + 1][0] = clipped(without_controls(nodes[at]), 24);
    cells[at + 1][at + 1] = "-";
  }
  cells[0][0] = "from \\ to";
  for (const PairResult* pair : pairs) {
    cells[static_cast<std::size_t>(pair->from) + 1][static_cast<std::size_t>(pair->to) + 1] =
        cell_of(pair);
  }
  std::vector<std::size_t> widths(count + 1);
  for (const auto& row : cells) {
    for (std::size_t at = 0; at <= count; ++at) widths[at] = std::max(widths[at], row[at].size());
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line = " ";
    for (std::size_t at = 0; at <= count; ++at)
      line += concat(" ", padded(row[at], widths[at] + 1));
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string slowest(const std::vector<std::string>& nodes, std::vector<const PairResult*> pairs) {
  constexpr std::size_t kShown = 5;
  std::erase_if(pairs, [](const PairResult* pair) { return !pair->bytes_per_second; });
  if (pairs.empty()) return "";
  std::ranges::sort(pairs, {}, [](const PairResult* pair) { return *pair->bytes_per_second; });
  const auto [fast, slow] =
      std::ranges::minmax(pairs, {}, [](const PairResult* pair) { return pair->latency_us; });
  std::string text =
      concat("  ", pairs.size(), " pairs: ", in_time(fast->latency_us), " to ",
             in_time(slow->latency_us), ", ", in_bits(*pairs.front()->bytes_per_second), " to ",
             in_bits(*pairs.back()->bytes_per_second), "; the slowest:\n");
  for (std::size_t at = 0; at < std::min(kShown, pairs.size()); ++at) {
    text += concat("    ", nodes[static_cast<std::size_t>(pairs[at]->from)], " to ",
                   nodes[static_cast<std::size_t>(pairs[at]->to)], ": ", cell_of(pairs[at]), "\n");
  }
  return text;
}

}  // namespace

std::string in_bits(double bytes_per_second) {
  const double bits = bytes_per_second * 8;
  if (bits >= 1e9) return formatted(bits < 1e10 ? "%.1f Gbit/s" : "%.0f Gbit/s", bits / 1e9);
  if (bits >= 1e6) return formatted("%.0f Mbit/s", bits / 1e6);
  return formatted("%.0f kbit/s", bits / 1e3);
}

std::string in_time(double microseconds) {
  if (microseconds < 1000) return formatted("%.0f us", microseconds);
  return formatted("%.1f ms", microseconds / 1000);
}

std::string pair_table(const std::vector<std::string>& nodes,
                       const std::vector<PairResult>& pairs) {
  const int count = static_cast<int>(nodes.size());
  std::vector<const PairResult*> shown;
  for (const PairResult& pair : pairs) {
    const bool known = pair.from >= 0 && pair.from < count && pair.to >= 0 && pair.to < count;
    if (pair.main && known) shown.push_back(&pair);
  }
  if (shown.empty()) return "";
  return nodes.size() <= kLargestTable ? whole_table(nodes, shown) : slowest(nodes, shown);
}

}  // namespace lockstep
