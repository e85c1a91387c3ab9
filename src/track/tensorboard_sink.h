#pragma once

#include <memory>
#include <string>

#include "track/append_file.h"
#include "track/protobuf.h"
#include "track/sink.h"

namespace lockstep {

/// A record of a file of events: its length, its bytes, and checksums of both.
std::string tensorboard_record(std::string_view bytes);

/// RUN/tensorboard/rank_R/events.out.tfevents.*: scalars, texts, histograms and hyperparameters.
/// Each start of a run begins a file, whose first record takes back what it does again.
class TensorboardSink : public Sink {
 public:
  TensorboardSink(const std::string& directory, int rank, nlohmann::json config,
                  Continuation start);

  std::string name() const override { return "TensorBoard"; }
  void open() override;
  void write(const TrackRecord& record) override;
  void flush() override;
  void finish(bool succeeded) override;

 private:
  void event(double time, std::int64_t step, int field, const ProtoMessage& content);
  void value(double time, std::int64_t step, const ProtoMessage& value);
  void hyperparameters(const char* tag, const ProtoMessage& data);
  void write_metrics(double time, std::int64_t step, const nlohmann::json& values);
  void write_config();
  void write_again();

  std::string folder_;
  std::string records_path_;
  nlohmann::json config_;
  Continuation start_;
  bool started_ = false;
  std::unique_ptr<AppendFile> file_;
};

}  // namespace lockstep
