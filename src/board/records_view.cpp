#include "board/records_view.h"

#include <cmath>

#include "board/bounded_json.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kMostTexts = 500;
constexpr std::size_t kMostTextBytes = 4 << 20;
constexpr std::size_t kMostRecordEvents = 2000;
constexpr std::size_t kMostSensors = 500;

}  // namespace

bool RecordsView::poll(const RootFolder& root) {
  return file_.poll(root, {.begins_anew = [this] { forget(); },
                           .line =
                               [this](std::string_view line, std::int64_t) {
                                 const auto record = parse_bounded(line);
                                 if (record && record->is_object()) add(*record);
                               }});
}

void RecordsView::forget() {
  config_ = json::object();
  texts_.clear();
  events_.clear();
  system_.clear();
  end_ = End::none;
  text_bytes_ = 0;
}

void RecordsView::add(const json& record) {
  const std::string kind = text_of(record, "kind");
  const double time = number_of(record, "time");
  const auto step = whole_of(record, "step");
  if (kind == "start") {
    if (record.contains("config")) config_ = record["config"];
    end_ = End::none;
    // What a run has done again since does not count.
    std::erase_if(texts_, [&](const Text& text) {
      if (text.step <= step) return false;
      text_bytes_ -= text.text.size();
      return true;
    });
  } else if (kind == "event") {
    events_.push_back(record);
    if (events_.size() > kMostRecordEvents) events_.pop_front();
  } else if (kind == "text") {
    texts_.push_back({step, time, text_of(record, "name"), text_of(record, "text")});
    text_bytes_ += texts_.back().text.size();
    while (texts_.size() > kMostTexts || (text_bytes_ > kMostTextBytes && texts_.size() > 1)) {
      text_bytes_ -= texts_.front().text.size();
      texts_.pop_front();
    }
  } else if (kind == "system") {
    for (const auto& [name, value] : record.items()) {
      if (name == "kind" || name == "time" || !value.is_number()) continue;
      auto curve = system_.find(name);
      if (curve == system_.end()) {
        if (system_.size() == kMostSensors) continue;
        curve = system_.emplace(name, Curve(512)).first;
      }
      curve->second.add(0, time, value.get<double>());
    }
  } else if (kind == "end") {
    const auto succeeded = record.find("succeeded");
    const bool well = succeeded != record.end() && *succeeded == true;
    end_ = well ? End::succeeded : End::failed;
  }
}

std::size_t RecordsView::bytes() const {
  std::size_t sum = sizeof *this + text_bytes_ + 512 * events_.size();
  for (const auto& [name, curve] : system_) sum += name.size() + curve.bytes() + 128;
  return sum;
}

}  // namespace lockstep
