#include "track/tensorboard_sink.h"

#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/crc32.h"
#include "lockstep/error.h"
#include "track/flat_config.h"
#include "track/host_name.h"
#include "track/metrics_file.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Fields of the messages, by the names that TensorBoard gives them.
namespace event_field {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7,
              kSourceMetadata = 10;
}
namespace value_field {
constexpr int kTag = 1, kSimple = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
constexpr int kString = 7;                                                // DataType
constexpr int kNumberOfHparam = 3, kTextOfHparam = 1, kBoolOfHparam = 2;  // of HParamInfo

std::uint32_t masked(std::uint32_t checksum) {
  return (checksum >> 15 | checksum << 17) + 0xa282ead8u;
}

template <typename Number>
void add_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

ProtoMessage plugin(const char* name, const std::string& content = {}) {
  ProtoMessage data;
  data.text(1, name);
  if (!content.empty()) data.text(2, content);
  return ProtoMessage().message(1, data);
}

ProtoMessage hparam_value(const json& value) {
  if (value.is_boolean()) return ProtoMessage().integer(4, value.get<bool>());
  if (value.is_number()) return ProtoMessage().real(2, value.get<double>());
  return ProtoMessage().text(3, value.get<std::string>());
}

int hparam_type(const json& value) {
  return value.is_boolean() ? kBoolOfHparam : value.is_number() ? kNumberOfHparam : kTextOfHparam;
}

// TensorBoard reads files in the order of their names, which begin with the second.
std::string next_event_file(const std::string& folder) {
  constexpr std::string_view kBegin = "events.out.tfevents.";
  auto second = static_cast<std::int64_t>(seconds_since_1970());
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kBegin)) continue;
    std::int64_t taken = 0;
    std::from_chars(name.data() + kBegin.size(), name.data() + name.size(), taken);
    // One that is far ahead is of another clock.
    if (taken >= second && taken < second + 3600) second = taken + 1;
  }
  return concat(folder, "/", kBegin, second, ".", host_name(), ".", ::getpid(), ".0");
}

}  // namespace

std::string tensorboard_record(std::string_view bytes) {
  std::string record;
  add_number(record, std::uint64_t{bytes.size()});
  add_number(record, masked(crc32c(record)));
  record += bytes;
  add_number(record, masked(crc32c(bytes)));
  return record;
}

TensorboardSink::TensorboardSink(const std::string& directory, int rank, json config,
                                 Continuation start)
    : folder_(concat(directory, "/tensorboard/rank_", rank)),
      records_path_(concat(directory, "/records/rank_", rank, ".jsonl")),
      config_(flat_config(config)),
      start_(std::move(start)) {}

void TensorboardSink::event(double time, std::int64_t step, int field,
                            const ProtoMessage& content) {
  ProtoMessage event;
  event.real(event_field::kWallTime, time).integer(event_field::kStep, step);
  file_->add(tensorboard_record(event.message(field, content).bytes()));
}

void TensorboardSink::value(double time, std::int64_t step, const ProtoMessage& value) {
  event(time, step, event_field::kSummary, ProtoMessage().message(1, value));
}

void TensorboardSink::open() {
  file_ = std::make_unique<AppendFile>(next_event_file(folder_));
  const double now = seconds_since_1970();
  ProtoMessage version;
  version.real(event_field::kWallTime, now).text(event_field::kFileVersion, "brain.Event:2");
  version.message(event_field::kSourceMetadata, ProtoMessage().text(1, "lockstep"));
  file_->add(tensorboard_record(version.bytes()));
  if (!started_ && start_.resumed) write_again();
  if (!started_) write_config();
  file_->flush();
  started_ = true;
}

// The process before may have died before this sink had the last lines: they come again, and
// TensorBoard forgets what it has from there on.
void TensorboardSink::write_again() {
  auto line = start_.tail.begin();
  // Of the step of the first there may be lines before it.
  if (start_.tail.size() == kTailLines) {
    const std::int64_t cut = start_.tail.front().step;
    line = std::ranges::find_if(start_.tail, [cut](const MetricLine& l) { return l.step > cut; });
  }
  const std::int64_t first = line == start_.tail.end() ? start_.place.step + 1 : line->step;
  event(seconds_since_1970(), first, event_field::kSessionLog, ProtoMessage().integer(1, 1));
  for (; line != start_.tail.end(); ++line) write_metrics(line->time, line->step, line->values);
  for (const json& given : read_track_records(records_path_)) {
    if (given.value("step", json()).is_number_integer() && given["step"] < first) continue;
    if (given["kind"] == "text") {
      write({.kind = TrackRecord::Kind::text,
             .time = given.value("time", 0.0),
             .step = given.at("step"),
             .name = given.at("name"),
             .text = given.at("text")});
    } else if (given["kind"] == "histogram") {
      write({.kind = TrackRecord::Kind::histogram,
             .time = given.value("time", 0.0),
             .step = given.at("step"),
             .name = given.at("name"),
             .values = given});
    }
  }
}

void TensorboardSink::write_metrics(double time, std::int64_t step, const json& values) {
  ProtoMessage summary;
  for (const auto& [name, number] : values.items()) {
    if (!number.is_number()) continue;
    // In single precision, as PyTorch's own writer does it. Newer forms have double precision, but
    // TensorBoard's loader for programs neither finds them as scalars nor takes them back.
    summary.message(1, ProtoMessage()
                           .text(value_field::kTag, name)
                           .real32(value_field::kSimple, number.get<float>()));
  }
  if (!summary.bytes().empty()) event(time, step, event_field::kSummary, summary);
}

void TensorboardSink::write(const TrackRecord& record) {
  if (record.kind == TrackRecord::Kind::metrics) {
    write_metrics(record.time, record.step, record.values);
  } else if (record.kind == TrackRecord::Kind::text) {
    ProtoMessage tensor, shape;
    shape.message(2, ProtoMessage().integer(1, 1));
    tensor.integer(1, kString).message(2, shape).text(8, record.text);
    ProtoMessage text;
    text.text(value_field::kTag, record.name + "/text_summary");
    text.message(value_field::kTensor, tensor).message(value_field::kMetadata, plugin("text"));
    value(record.time, record.step, text);
  } else if (record.kind == TrackRecord::Kind::histogram) {
    const auto edges = record.values.at("edges").get<std::vector<double>>();
    auto counts = record.values.at("counts").get<std::vector<double>>();
    if (edges.empty()) return;
    counts.insert(counts.begin(), 0);  // of what lies left of the first edge
    double all = 0;
    for (const double count : counts) all += count;
    ProtoMessage histogram;
    histogram.real(1, record.values.at("min")).real(2, record.values.at("max")).real(3, all);
    histogram.real(4, record.values.at("sum")).real(5, record.values.at("sum_squares"));
    histogram.reals(6, edges).reals(7, counts);
    value(record.time, record.step,
          ProtoMessage()
              .text(value_field::kTag, record.name)
              .message(value_field::kHistogram, histogram));
  }
}

void TensorboardSink::hyperparameters(const char* tag, const ProtoMessage& data) {
  value(seconds_since_1970(), 0,
        ProtoMessage()
            .text(value_field::kTag, tag)
            .message(value_field::kMetadata, plugin("hparams", data.bytes())));
}

void TensorboardSink::write_config() {
  if (config_.empty()) return;
  ProtoMessage experiment, start;
  for (const auto& [name, given] : config_.items()) {
    experiment.message(4, ProtoMessage().text(1, name).integer(4, hparam_type(given)));
    start.message(1, ProtoMessage().text(1, name).message(2, hparam_value(given)));
  }
  for (const char* metric : {"loss", "eval/loss"}) {
    experiment.message(5, ProtoMessage().message(1, ProtoMessage().text(2, metric)));
  }
  start.real(5, seconds_since_1970());
  hyperparameters("_hparams_/experiment", ProtoMessage().message(2, experiment));
  hyperparameters("_hparams_/session_start_info", ProtoMessage().message(3, start));
}

void TensorboardSink::flush() {
  file_->flush();
}

void TensorboardSink::finish(bool succeeded) {
  if (!config_.empty()) {
    ProtoMessage end;
    end.integer(1, succeeded ? 1 : 2).real(2, seconds_since_1970());
    hyperparameters("_hparams_/session_end_info", ProtoMessage().message(4, end));
  }
  file_->flush();
}

}  // namespace lockstep
