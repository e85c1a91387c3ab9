#pragma once

#include <memory>
#include <string>

#include "track/append_file.h"
#include "track/protobuf.h"
#include "track/sink.h"
#include "track/wandb_run.h"

namespace lockstep {

/// FOLDER/wandb/offline-run-<time>-<id>/run-<id>.wandb, which `wandb sync` uploads. Each start of a
/// run begins a file under the same id; what it does again is cut off the files before.
class WandbSink : public Sink {
 public:
  WandbSink(WandbRun run, nlohmann::json config, Continuation start);

  std::string name() const override { return "W&B"; }
  /// Throws InvalidArgument where `resume` forbids it.
  void open() override;
  void write(const TrackRecord& record) override;
  void flush() override;
  void finish(bool succeeded) override;

 private:
  /// Cuts off what does not count of the files of earlier starts; returns the number of the last
  /// row that is in one, or -1.
  std::int64_t cut_earlier_files() const;
  void begin_file(bool resumed, std::int64_t last);
  void put(int field, const ProtoMessage& content);
  void describe_run(bool resumed, std::int64_t first_row);
  void define_metrics();
  void write_row(std::int64_t row, double time, std::int64_t step, const nlohmann::json& values);
  void write_stats(const TrackRecord& record);
  void write_file(const std::string& path, const std::string& name);
  void write_summary();

  WandbRun run_;
  nlohmann::json config_;
  Continuation start_;
  double began_ = 0;
  bool started_ = false;
  std::string folder_;  // of this start
  std::unique_ptr<AppendFile> file_;
  std::int64_t records_ = 0;
  std::int64_t last_row_ = -1;
  nlohmann::json summary_ = nlohmann::json::object();
  double summarized_ = 0;
};

}  // namespace lockstep
