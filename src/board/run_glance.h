#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "board/records_view.h"
#include "board/root_folder.h"

namespace lockstep {

/// What the beginnings and ends of a run's files tell: enough for a line in a list, at a cost that
/// does not depend on how long the run is.
struct RunGlance {
  double first_time = 0;
  double last_time = 0;
  std::int64_t last_step = 0;
  nlohmann::json latest = nlohmann::json::object();  // the last line of metrics
  nlohmann::json config = nlohmann::json::object();
  RecordsView::End end = RecordsView::End::none;
  double changed = 0;             // when anything was last written
  std::int64_t fingerprint = -1;  // of what was looked at
};

/// Nothing is read where the files are as they were at the last glance.
void glance_at(const RootFolder& root, const std::string& id, RunGlance& glance);

}  // namespace lockstep
