// What the board reads with code of its own: lines of metrics, which must come out as layer track
// reads them; JSON of any shape; cookies and paths of requests.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "board/board_access.h"
#include "board/bounded_json.h"
#include "board/metric_scan.h"
#include "board/root_folder.h"
#include "track/metrics_file.h"

namespace {

void expect(bool holds) {
  if (!holds) std::abort();
}

void same_as_track(std::string_view line) {
  lockstep::ScannedMetrics found;
  const bool scanned = lockstep::scan_metrics(line, found);
  const auto expected = lockstep::parse_metric_line(line);
  expect(scanned == expected.has_value());
  if (!expected) return;
  expect(found.step == expected->step && found.time == expected->time);
  for (const auto& [name, value] : found.values) {
    const auto other = expected->values.find(std::string(name));
    expect(other != expected->values.end());
    // A name that stands twice counts with its last value there.
    if (found.values.size() != expected->values.size()) continue;
    expect(other->is_number() ? other->get<double>() == value : std::isnan(value));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.find('\n') == text.npos) same_as_track(text);
  if (const auto value = lockstep::parse_bounded(text)) {
    lockstep::dump_text(*value);
    if (value->is_object()) {
      lockstep::whole_of(*value, "step");
      lockstep::text_of(*value, "kind");
    }
  }
  const std::string token = lockstep::cookie_value(text, "lockstep_board_8642");
  expect(token.find(';') == token.npos);
  if (lockstep::is_plain_path(text)) {
    expect(!text.starts_with('/') && text.find("/../") == text.npos && !text.starts_with("../"));
  }
  return 0;
}
