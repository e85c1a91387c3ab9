#include "train/run_journal.h"

#include <optional>

namespace lockstep {
namespace {

using nlohmann::json;

json json_of(const StepReport& report) {
  json value = {{"step", report.step},
                {"epoch", report.epoch},
                {"step_in_epoch", report.step_in_epoch},
                {"lr", report.lr},
                {"grad_norm", report.grad_norm},
                {"skipped", report.skipped},
                {"metrics", report.metrics}};
  if (report.loss) value["loss"] = *report.loss;
  return value;
}

// Where the time of a step went is each rank's own and does not travel.
StepReport report_of(const json& value) {
  StepReport report{.step = value.at("step"),
                    .epoch = value.at("epoch"),
                    .step_in_epoch = value.at("step_in_epoch"),
                    .lr = value.at("lr"),
                    .grad_norm = value.at("grad_norm"),
                    .skipped = value.at("skipped"),
                    .metrics = value.at("metrics")};
  if (value.contains("loss")) report.loss = value["loss"].get<double>();
  return report;
}

}  // namespace

json RunJournal::to_json() const {
  json list = json::array();
  for (const RunEvent& event : events_) {
    list.push_back({{"kind", static_cast<int>(event.kind)},
                    {"commit", event.commit},
                    {"step", event.step},
                    {"epoch", event.epoch},
                    {"report", json_of(event.report)},
                    {"evaluation", event.evaluation},
                    {"log", event.log}});
  }
  json lines = json::array();
  for (const JournalLine& line : lines_) lines.push_back({line.step, line.values});
  return {{"events", list}, {"lines", lines}};
}

RunJournal RunJournal::from_json(const json& given) {
  RunJournal journal;
  for (const json& value : given.at("events")) {
    journal.add({.kind = static_cast<RunEvent::Kind>(value.at("kind").get<int>()),
                 .commit = value.at("commit"),
                 .step = value.at("step"),
                 .epoch = value.at("epoch"),
                 .report = report_of(value.at("report")),
                 .evaluation = value.at("evaluation"),
                 .log = value.at("log")});
  }
  journal.lines_.clear();
  for (const json& line : given.at("lines")) {
    journal.lines_.push_back({.step = line.at(0), .values = line.at(1)});
  }
  return journal;
}

}  // namespace lockstep
