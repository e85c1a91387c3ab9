#pragma once

#include <memory>
#include <string>

#include "track/append_file.h"
#include "track/sink.h"

namespace lockstep {

/// RUN/metrics/rank_R.jsonl and, for all that is not metrics, RUN/records/rank_R.jsonl.
class JsonlSink : public Sink {
 public:
  JsonlSink(std::string directory, int rank, nlohmann::json config);

  /// Before the first open(): what the run has written before, as far as it counts. Throws
  /// SystemError.
  Continuation resume(const TrackPlace& place);

  std::string name() const override { return "JSON lines"; }
  void open() override;
  void write(const TrackRecord& record) override;
  void flush() override;
  void finish(bool succeeded) override;

 private:
  void put(nlohmann::ordered_json record);

  std::string metrics_path_, records_path_;
  nlohmann::json config_;
  Continuation start_;
  bool started_ = false;  // its start is in the file
  std::unique_ptr<AppendFile> metrics_, records_;
};

}  // namespace lockstep
