#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "board/root_folder.h"

namespace lockstep {

/// One metric of all ranks over steps: a row for each rank, a column for a range of steps.
struct RankMap {
  std::vector<int> ranks;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::vector<double> times;                // of each column; NaN: nobody was there
  std::vector<std::vector<double>> values;  // by rank, then column; NaN: nothing is known
};

struct RankFile {
  int rank = 0;
  std::string path;
};

/// Reads short files whole, and of long ones a few lines for each column: steps are in order, so
/// they are found by their place in the file. What it costs does not depend on how long a run is.
RankMap read_rank_map(const RootFolder& root, const std::vector<RankFile>& files,
                      const std::string& name, std::size_t columns);

}  // namespace lockstep
