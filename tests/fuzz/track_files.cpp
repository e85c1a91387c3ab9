// Reads files of a run: metrics, records, W&B's. Whole records that are written again read the
// same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "track/metrics_file.h"
#include "track/proc_files.h"
#include "track/protobuf.h"
#include "track/wandb_file.h"

using namespace lockstep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const MetricLine& line : parse_metrics(text).lines) {
    const auto again = parse_metric_line(metric_line(line));
    if (!again || again->step != line.step) std::abort();
  }
  parse_track_records(text);
  HostCounters host;
  parse_network(text, host);
  parse_disks(text, host);
  ProcessCounters process;
  parse_process_stat(text, process);

  const auto records = parse_wandb_file(text);
  std::string file = wandb_file_header();
  for (const WandbRecord& record : records) {
    wandb_row(record.bytes);
    file += wandb_chunks(record.bytes, file.size());
  }
  if (wandb_end(records, size, 3, 3) > size) std::abort();
  if (parse_wandb_file(file).size() != records.size()) std::abort();
  return 0;
}
