#include "track/wandb_sink.h"

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "lockstep/error.h"
#include "track/host_name.h"
#include "track/json_text.h"
#include "track/wandb_code.h"
#include "track/wandb_fields.h"
#include "track/wandb_file.h"

namespace lockstep {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr double kSummaryEvery = 10;  // seconds

ProtoMessage timestamp(double time) {
  const double seconds = std::floor(time);
  return ProtoMessage()
      .integer(1, static_cast<std::int64_t>(seconds))
      .integer(2, static_cast<std::int64_t>((time - seconds) * 1e9));
}

// As W&B's own client writes numbers that JSON does not have.
std::string wandb_json(const json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const double number = value.get<double>();
    return std::isnan(number) ? "\"NaN\"" : number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  }
  if (value.is_null()) return "\"NaN\"";
  std::string text;
  append_json_value(text, value);
  return text;
}

ProtoMessage wandb_item(const std::string& key, const json& value) {
  return ProtoMessage().text(wandb::kItemKey, key).text(wandb::kItemValue, wandb_json(value));
}

std::string local_time_text(double time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts = {};
  ::localtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d_%H%M%S", &parts);
  return text;
}

// Files of all starts of a run, the oldest first.
std::vector<fs::path> files_of_run(const std::string& folder, const std::string& id) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder + "/wandb", ignored)) {
    const std::string name = entry.path().filename().string();
    const fs::path file = entry.path() / ("run-" + id + ".wandb");
    // offline-run-YYYYMMDD_HHMMSS-<id>
    const bool named = name.starts_with("offline-run-") && name.size() == 28 + id.size() &&
                       name.ends_with("-" + id);
    if (named && fs::exists(file, ignored)) files.push_back(file);
  }
  std::ranges::sort(files);
  return files;
}

}  // namespace

WandbSink::WandbSink(WandbRun run, json config, Continuation start)
    : run_(std::move(run)),
      config_(std::move(config)),
      start_(std::move(start)),
      began_(seconds_since_1970()) {}

void WandbSink::put(int field, const ProtoMessage& content) {
  const ProtoMessage record =
      ProtoMessage().integer(wandb::kRecordNumber, ++records_).message(field, content);
  file_->add(wandb_chunks(record.bytes(), file_->size()));
}

std::int64_t WandbSink::cut_earlier_files() const {
  std::int64_t last = -1;
  for (const fs::path& path : files_of_run(run_.folder, run_.id)) {
    if (start_.place.lines == 0) {  // nothing of it counts: it is put aside as a whole
      fs::rename(path, path.string() + ".before");
      continue;
    }
    std::ifstream stream(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(stream), {});
    const auto records = parse_wandb_file(bytes);
    const auto end = wandb_end(records, bytes.size(), start_.place.lines, start_.place.step);
    for (const WandbRecord& record : records) {
      if (record.offset >= end) break;
      if (const auto row = wandb_row(record.bytes)) last = std::max(last, row->number);
    }
    // What was uploaded cannot be taken back.
    std::error_code ignored;
    const bool uploaded = fs::exists(path.string() + ".synced", ignored);
    if (end < bytes.size() && !uploaded && ::truncate(path.c_str(), static_cast<off_t>(end)) != 0) {
      throw_errno(concat("cannot cut ", path.string()));
    }
  }
  return last;
}

void WandbSink::open() {
  if (started_) {  // it failed; what it has is the same file, whole up to its last record
    file_ = std::make_unique<AppendFile>(file_->path());
    return;
  }
  const bool exists = !files_of_run(run_.folder, run_.id).empty();
  const bool begins = start_.place.lines == 0;
  using Resume = WandbOptions::Resume;
  if (run_.options.resume == Resume::must && !exists) {
    throw InvalidArgument(
        concat("resume is 'must', but there is no run ", run_.id, " in ", run_.folder, "/wandb"));
  }
  if (run_.options.resume == Resume::never && exists && begins) {
    throw InvalidArgument(
        concat("resume is 'never', but there is a run ", run_.id, " in ", run_.folder, "/wandb"));
  }
  const std::int64_t last = start_.resumed ? cut_earlier_files() : -1;
  for (double time = began_;; time += 1) {  // the name of the folder has whole seconds
    folder_ = concat(run_.folder, "/wandb/offline-run-", local_time_text(time), "-", run_.id);
    std::error_code problem;
    fs::create_directories(run_.folder + "/wandb", problem);
    if (fs::create_directory(folder_, problem)) break;
    if (problem) throw SystemError(concat("cannot make ", folder_, ": ", problem.message()));
  }
  try {
    begin_file(exists && !begins, last);
  } catch (...) {  // an empty run would be in the way of `wandb sync`
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
  started_ = true;
}

void WandbSink::begin_file(bool resumed, std::int64_t last) {
  file_ = std::make_unique<AppendFile>(concat(folder_, "/run-", run_.id, ".wandb"));
  records_ = 0;
  last_row_ = last;
  file_->add(wandb_file_header());
  put(wandb::kHeader,
      ProtoMessage().message(1, ProtoMessage().text(1, "0.31.0").text(2, "0.70.0")));
  describe_run(resumed, last + 1);
  define_metrics();
  if (!run_.code.empty()) {
    for (const std::string& name : code_files(run_.code)) {
      write_file(run_.code + "/" + name, "code/" + name);
    }
  }
  const std::int64_t first = start_.kept - std::ssize(start_.tail);
  for (std::int64_t i = 0; i < std::ssize(start_.tail); ++i) {
    const MetricLine& line = start_.tail[static_cast<std::size_t>(i)];
    if (first + i > last) write_row(first + i, line.time, line.step, line.values);
  }
  file_->flush();
}

void WandbSink::describe_run(bool resumed, std::int64_t first_row) {
  ProtoMessage run, config;
  run.text(wandb::kRunId, run_.id);
  if (!run_.options.entity.empty()) run.text(wandb::kEntity, run_.options.entity);
  run.text(wandb::kProject, run_.options.project);
  for (const auto& [name, value] : config_.items()) {
    config.message(wandb::kUpdate, wandb_item(name, value));
  }
  run.message(wandb::kRunConfig, config).text(wandb::kRunGroup, run_.options.group);
  if (!run_.options.job_type.empty()) run.text(wandb::kJobType, run_.options.job_type);
  run.text(wandb::kDisplayName, run_.name);
  if (!run_.options.notes.empty()) run.text(wandb::kNotes, run_.options.notes);
  for (const std::string& tag : run_.options.tags) run.text(wandb::kTags, tag);
  run.text(wandb::kHost, host_name());
  if (first_row > 0) run.integer(wandb::kStartingStep, first_row);
  run.message(wandb::kStartTime, timestamp(began_));
  if (resumed) run.integer(wandb::kResumed, 1);
  put(wandb::kRun, run);
}

// The x axis of every curve is the step of the run, not the number of the row.
void WandbSink::define_metrics() {
  ProtoMessage options;
  options.integer(wandb::kDefined, 1);
  put(wandb::kMetric,
      ProtoMessage().text(wandb::kMetricName, "step").message(wandb::kMetricOptions, options));
  options.integer(wandb::kStepSync, 1);
  put(wandb::kMetric, ProtoMessage()
                          .text(wandb::kGlobName, "*")
                          .text(wandb::kStepMetric, "step")
                          .message(wandb::kMetricOptions, options));
}

void WandbSink::write_row(std::int64_t row, double time, std::int64_t step, const json& values) {
  ProtoMessage history;
  const auto add = [&](const std::string& key, const json& value) {
    history.message(wandb::kHistoryItem, wandb_item(key, value));
    if (!key.starts_with('_') || key == "_step") summary_[key] = value;
  };
  for (const auto& [name, value] : values.items()) add(name, value);
  add("step", step);
  add("_step", row);
  add("_timestamp", time);
  add("_runtime", std::max(0.0, time - began_));
  history.message(wandb::kHistoryStep, ProtoMessage().integer(1, row));
  put(wandb::kHistory, history);
  last_row_ = row;
}

void WandbSink::write(const TrackRecord& record) {
  switch (record.kind) {
    case TrackRecord::Kind::metrics:
      write_row(std::max(record.row, last_row_ + 1), record.time, record.step, record.values);
      break;
    case TrackRecord::Kind::text:
      write_row(std::max<std::int64_t>(last_row_, 0), record.time, record.step,
                {{record.name, record.text}});
      break;
    case TrackRecord::Kind::histogram:
      write_row(std::max<std::int64_t>(last_row_, 0), record.time, record.step,
                {{record.name,
                  {{"_type", "histogram"},
                   {"values", record.values.at("counts")},
                   {"bins", record.values.at("edges")}}}});
      break;
    case TrackRecord::Kind::system:
      write_stats(record);
      break;
    case TrackRecord::Kind::console:
      put(wandb::kOutputRaw, ProtoMessage()
                                 .integer(wandb::kOutputType, 1)
                                 .message(wandb::kOutputTime, timestamp(record.time))
                                 .text(wandb::kOutputLine, record.text));
      break;
    case TrackRecord::Kind::file:
      write_file(record.text, record.name);
      break;
    case TrackRecord::Kind::event:
      break;  // it has no such thing
  }
  if (record.time - summarized_ > kSummaryEvery) write_summary();
}

void WandbSink::write_stats(const TrackRecord& record) {
  ProtoMessage stats;
  stats.message(wandb::kStatsTime, timestamp(record.time));
  for (const auto& [name, value] : record.values.items()) {
    if (value.is_number()) stats.message(wandb::kStatsItem, wandb_item(name, value));
  }
  put(wandb::kStats, stats);
}

void WandbSink::write_file(const std::string& path, const std::string& wanted_name) {
  const fs::path name = fs::path(wanted_name).lexically_normal();
  if (name.empty() || name.is_absolute() || *name.begin() == "..") return;
  const fs::path place = fs::path(folder_) / "files" / name;
  std::error_code problem;
  fs::create_directories(place.parent_path(), problem);
  if (!problem) fs::copy_file(path, place, fs::copy_options::overwrite_existing, problem);
  if (problem) return;  // a file that has gone meanwhile
  put(wandb::kFiles,
      ProtoMessage().message(1, ProtoMessage().text(1, name.string()).integer(2, 1)));
}

void WandbSink::write_summary() {
  ProtoMessage summary;
  for (const auto& [name, value] : summary_.items()) {
    summary.message(wandb::kUpdate, wandb_item(name, value));
  }
  if (!summary_.empty()) put(wandb::kSummary, summary);
  summarized_ = seconds_since_1970();
}

void WandbSink::flush() {
  file_->flush();
}

void WandbSink::finish(bool succeeded) {
  write_summary();
  put(wandb::kExit,
      ProtoMessage()
          .integer(wandb::kExitCode, succeeded ? 0 : 1)
          .integer(wandb::kRuntime, static_cast<std::int64_t>(seconds_since_1970() - began_)));
  file_->flush();
}

}  // namespace lockstep
