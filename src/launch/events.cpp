#include "launch/events.h"

#include <utility>

#include "launch/json_fields.h"

namespace lockstep {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson to_value(const EventField& field) {
  return std::visit(
      [](const auto& value) -> OrderedJson {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, RawJson>) {
          auto parsed = parse_json(value.text);
          return parsed ? OrderedJson(*std::move(parsed)) : OrderedJson(value.text);
        } else {
          return value;
        }
      },
      field.value);
}

}  // namespace

std::string event_line(const Event& event, std::string_view host, const EventTimes& times) {
  using std::chrono::duration;
  using std::chrono::milliseconds;
  using std::chrono::nanoseconds;
  OrderedJson line;
  // To the millisecond, which a double holds exactly enough to print back.
  const auto since_1970 = std::chrono::floor<milliseconds>(times.wall.time_since_epoch());
  line["time"] = static_cast<double>(since_1970.count()) / 1000.0;
  line["mono_ns"] =
      std::chrono::duration_cast<nanoseconds>(times.steady.time_since_epoch()).count();
  line["host"] = host;
  line["epoch"] = event.epoch;
  line["slot"] = event.slot ? OrderedJson(*event.slot) : OrderedJson(nullptr);
  line["kind"] = event.kind;
  for (const EventField& field : event.fields) line[field.name] = to_value(field);
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

EventLog::EventLog(Options options) : options_(std::move(options)) {
  if (options_.path.empty()) return;
  file_.emplace(LogFileOptions{.path = options_.path, .max_bytes = 0, .warn = options_.warn});
}

void EventLog::write(const Event& event) {
  const EventTimes now{.wall = std::chrono::system_clock::now(),
                       .steady = std::chrono::steady_clock::now()};
  const std::string line = event_line(event, options_.host, now);
  if (file_) file_->write(line + "\n");
  if (options_.listener) options_.listener(line);
}

}  // namespace lockstep
