#include "board/events_view.h"

#include <algorithm>

#include "board/bounded_json.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kMostEvents = 5000;
constexpr std::size_t kMostRecoveries = 500;
constexpr std::size_t kLongestEventLine = 256 << 10;

// What a stage of a recovery is called, by the event that ends it; nullptr: it is none.
const char* stage_name(const std::string& kind) {
  if (kind == "revoked") return "others stopped";
  if (kind == "epoch_start") return "new world";
  if (kind == "worker_start") return "process started";
  if (kind == "worker_hello") return "program loaded";
  if (kind == "recovers") return "state received";
  return nullptr;
}

}  // namespace

bool EventsView::poll(const RootFolder& root) {
  return file_.poll(root, {.begins_anew = [this] { forget(); },
                           .line =
                               [this](std::string_view line, std::int64_t) {
                                 if (line.size() > kLongestEventLine) return;
                                 auto event = parse_bounded(line);
                                 if (event && event->is_object()) add(*std::move(event));
                               }});
}

void EventsView::forget() {
  job_ = {};
  last_loss_ = 0;
  events_.clear();
  recoveries_.clear();
}

void EventsView::add(json event) {
  const std::string kind = text_of(event, "kind");
  const double time = number_of(event, "time");
  if (kind == "job_start") {
    // Of a job that was started again in the same directory, too.
    const Job before = job_;
    job_ = {.started = true,
            .start = time,
            .world_size = static_cast<int>(whole_of(event, "workers")),
            .restarts = before.started ? before.restarts + 1 : 0,
            .failures = before.failures,
            .stragglers = before.stragglers};
  } else if (kind == "job_end") {
    job_.ended = true;
    job_.end = time;
    job_.exit_code = static_cast<int>(whole_of(event, "exit_code"));
    job_.reason = text_of(event, "reason");
  } else if (kind == "epoch_start") {
    job_.world_size = static_cast<int>(whole_of(event, "world_size"));
  } else if (kind == "worker_failed") {
    ++job_.failures;
    last_loss_ = time;
  } else if (kind == "straggler") {
    ++job_.stragglers;
  }
  tell(event, kind, time);
  events_.push_back(std::move(event));
  if (events_.size() > kMostEvents) events_.pop_front();
}

void EventsView::tell(const json& event, const std::string& kind, double time) {
  const auto epoch = static_cast<std::uint64_t>(whole_of(event, "epoch"));
  if (kind == "revoked") {
    // The loss itself came a moment before, where it was this node's.
    const bool just_now = last_loss_ > 0 && time - last_loss_ < 5 && time >= last_loss_;
    recoveries_.push_back({.epoch = epoch,
                           .time = just_now ? last_loss_ : time,
                           .lost = text_of(event, "lost"),
                           .reason = text_of(event, "reason")});
    if (recoveries_.size() > kMostRecoveries) recoveries_.pop_front();
  }
  // The newest: a job that is started again counts its epochs from the beginning.
  const auto story = std::find_if(recoveries_.rbegin(), recoveries_.rend(),
                                  [&](const RecoveryStory& each) { return each.epoch == epoch; });
  if (story == recoveries_.rend() || story->done) return;
  const double at_ms = std::max(0.0, 1000 * (time - story->time));
  if (kind == "recovered") {
    story->done = true;
    story->step = whole_of(event, "step");
    story->ms = number_of(event, "ms_since_loss", at_ms);
    story->stages.push_back({"all go on", std::max(at_ms, story->ms)});
    return;
  }
  const char* name = stage_name(kind);
  if (name == nullptr) return;
  // Of several ranks the last one counts: all wait for it.
  const auto known = std::ranges::find(story->stages, name, &RecoveryStory::Stage::name);
  if (known != story->stages.end()) {
    known->at_ms = at_ms;
  } else {
    story->stages.push_back({name, at_ms});
  }
}

std::size_t EventsView::bytes() const {
  return sizeof *this + 1024 * events_.size() + 1024 * recoveries_.size();
}

}  // namespace lockstep
