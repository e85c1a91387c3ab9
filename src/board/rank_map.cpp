#include "board/rank_map.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "board/metric_scan.h"

namespace lockstep {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kLineRoom = 2048;       // what is read to find some lines in it
constexpr std::int64_t kLongestRoom = 65'536;  // where they are longer

struct OpenRank {
  UniqueFd file;
  std::int64_t bytes = 0;
  std::int64_t first_step = 0, last_step = 0;
};

// Calls `take` with the whole lines of [begin, end) of a file, of which `begin` may be within one.
template <typename Take>
int lines_between(const OpenRank& rank, std::int64_t begin, std::int64_t end, const Take& take) {
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin)), '\0');
  const ssize_t got = ::pread(rank.file.get(), text.data(), text.size(), begin);
  std::string_view rest(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  if (begin > 0) {
    const std::size_t cut = rest.find('\n');
    rest.remove_prefix(cut == rest.npos ? rest.size() : cut + 1);
  }
  thread_local ScannedMetrics found;
  int count = 0;
  for (std::size_t newline; (newline = rest.find('\n')) != rest.npos;
       rest.remove_prefix(newline + 1)) {
    if (!scan_metrics(rest.substr(0, newline), found)) continue;
    ++count;
    take(found);
  }
  return count;
}

// The step of the first line at or after an offset, or of the last one before the end.
std::optional<std::int64_t> step_at(const OpenRank& rank, std::int64_t offset, bool last) {
  std::optional<std::int64_t> step;
  for (std::int64_t room = kLineRoom; !step && room <= kLongestRoom; room *= 2) {
    const std::int64_t begin = last ? std::max<std::int64_t>(0, rank.bytes - room) : offset;
    lines_between(rank, begin, begin + room, [&](const ScannedMetrics& found) {
      if (last || !step) step = found.step;
    });
  }
  return step;
}

class RowReader {
 public:
  RowReader(const OpenRank& rank, const std::string& name, RankMap& map, std::size_t columns)
      : rank_(rank), name_(name), map_(map), columns_(columns), sums_(columns), counts_(columns) {}

  std::vector<double> read() {
    const std::int64_t room = kLineRoom * static_cast<std::int64_t>(columns_);
    if (rank_.bytes <= room) {
      lines_between(rank_, 0, rank_.bytes, [this](const ScannedMetrics& found) { add(found); });
    } else {
      for (std::size_t column = 0; column < columns_; ++column) look_at(column);
    }
    std::vector<double> row(columns_, kNothing);
    for (std::size_t i = 0; i < columns_; ++i) {
      if (counts_[i] > 0) row[i] = sums_[i] / counts_[i];
    }
    return row;
  }

 private:
  double step_of(std::size_t column) const {
    const double width = static_cast<double>(map_.last_step - map_.first_step + 1) / columns_;
    return static_cast<double>(map_.first_step) + (static_cast<double>(column) + 0.5) * width;
  }

  void add(const ScannedMetrics& found) {
    const double all = static_cast<double>(map_.last_step - map_.first_step + 1);
    const double part = static_cast<double>(found.step - map_.first_step) / all;
    const auto column = static_cast<std::size_t>(part * static_cast<double>(columns_));
    if (part < 0 || column >= columns_) return;
    map_.times[column] = found.time;
    for (const auto& [name, value] : found.values) {
      if (name != name_ || !std::isfinite(value)) continue;
      sums_[column] += value;
      ++counts_[column];
    }
  }

  void look_at(std::size_t column) {
    const double step = step_of(column);
    if (step < rank_.first_step - 1.0 || step > rank_.last_step + 1.0) return;
    const double all = std::max<double>(1, rank_.last_step - rank_.first_step);
    // Lines are about equally long, so this is close; else the place is searched for.
    double part = (step - rank_.first_step) / all;
    std::int64_t low = 0, high = rank_.bytes;
    for (int turn = 0; turn < 24 && counts_[column] == 0 && low < high; ++turn) {
      const std::int64_t middle =
          turn == 0 ? std::clamp<std::int64_t>(part * static_cast<double>(rank_.bytes), low, high)
                    : low + (high - low) / 2;
      const auto found = step_at(rank_, middle, /*last=*/false);
      lines_between(rank_, middle, middle + kLineRoom,
                    [this](const ScannedMetrics& line) { add(line); });
      if (!found || static_cast<double>(*found) > step) {
        high = middle;
      } else {
        if (low == middle) break;
        low = middle;
      }
      if (high - low < kLineRoom / 2) break;
    }
  }

  const OpenRank& rank_;
  const std::string& name_;
  RankMap& map_;
  std::size_t columns_;
  std::vector<double> sums_;
  std::vector<int> counts_;
};

}  // namespace

RankMap read_rank_map(const RootFolder& root, const std::vector<RankFile>& files,
                      const std::string& name, std::size_t columns) {
  RankMap map;
  std::vector<OpenRank> open;
  for (const RankFile& file : files) {
    OpenRank rank{.file = root.open_file(file.path)};
    struct stat about {};
    if (!rank.file || ::fstat(rank.file.get(), &about) != 0) continue;
    rank.bytes = about.st_size;
    const auto first = step_at(rank, 0, /*last=*/false);
    const auto last = step_at(rank, 0, /*last=*/true);
    if (!first || !last) continue;
    rank.first_step = *first;
    rank.last_step = *last;
    map.first_step = open.empty() ? *first : std::min(map.first_step, *first);
    map.last_step = open.empty() ? *last : std::max(map.last_step, *last);
    map.ranks.push_back(file.rank);
    open.push_back(std::move(rank));
  }
  const auto steps = static_cast<std::size_t>(
      std::max<std::int64_t>(0, open.empty() ? 0 : map.last_step - map.first_step + 1));
  columns = std::clamp<std::size_t>(columns, 1, std::max<std::size_t>(1, steps));
  map.times.assign(columns, kNothing);
  for (const OpenRank& rank : open) {
    map.values.push_back(RowReader(rank, name, map, columns).read());
  }
  return map;
}

}  // namespace lockstep
