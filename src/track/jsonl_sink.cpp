#include "track/jsonl_sink.h"

#include <utility>

#include "lockstep/error.h"
#include "track/metrics_file.h"

namespace lockstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

}  // namespace

JsonlSink::JsonlSink(std::string directory, int rank, nlohmann::json config)
    : metrics_path_(concat(directory, "/metrics/rank_", rank, ".jsonl")),
      records_path_(concat(directory, "/records/rank_", rank, ".jsonl")),
      config_(std::move(config)) {}

Continuation JsonlSink::resume(const TrackPlace& place) {
  start_ = keep_metrics(metrics_path_, place);
  return start_;
}

void JsonlSink::open() {
  metrics_ = std::make_unique<AppendFile>(metrics_path_);
  cut_torn_line(records_path_);
  records_ = std::make_unique<AppendFile>(records_path_);
  if (started_) return;
  put({{"kind", "start"},
       {"time", seconds_since_1970()},
       {"step", start_.place.step},
       {"lines", start_.kept},
       {"config", config_}});
  records_->flush();
  started_ = true;
}

void JsonlSink::put(OrderedJson record) {
  records_->add(record.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

void JsonlSink::write(const TrackRecord& record) {
  if (record.kind == TrackRecord::Kind::metrics) {
    metrics_->add(metric_line(record.step, record.time, record.values) + "\n");
    return;
  }
  OrderedJson line = {{"kind", ""}, {"time", record.time}};
  const auto add_all = [&] {
    for (const auto& [name, value] : record.values.items()) {
      if (!line.contains(name)) line[name] = value;
    }
  };
  switch (record.kind) {
    case TrackRecord::Kind::metrics:
      return;  // above
    case TrackRecord::Kind::event:
      line["kind"] = "event";
      line["event"] = record.name;
      add_all();
      break;
    case TrackRecord::Kind::system:
      line["kind"] = "system";
      add_all();
      break;
    case TrackRecord::Kind::text:
      line["kind"] = "text";
      line["step"] = record.step;
      line["name"] = record.name;
      line["text"] = record.text;
      break;
    case TrackRecord::Kind::histogram:
      line["kind"] = "histogram";
      line["step"] = record.step;
      line["name"] = record.name;
      add_all();
      break;
    case TrackRecord::Kind::file:
      line["kind"] = "file";
      line["name"] = record.name;
      line["path"] = record.text;
      break;
    case TrackRecord::Kind::console:
      return;  // the launcher keeps all that ranks print
  }
  put(std::move(line));
}

void JsonlSink::flush() {
  metrics_->flush();
  records_->flush();
}

void JsonlSink::finish(bool succeeded) {
  put({{"kind", "end"}, {"time", seconds_since_1970()}, {"succeeded", succeeded}});
  flush();
}

}  // namespace lockstep
