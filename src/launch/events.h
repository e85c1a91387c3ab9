#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launch/log_file.h"

namespace lockstep {

/// JSON that is a value already, such as to_json() of a failure.
struct RawJson {
  std::string text;
};

/// What an event says beyond when, where and what.
struct EventField {
  std::string name;
  std::variant<std::int64_t, double, bool, std::string, RawJson> value;
};

struct Event {
  std::string_view kind;  // "job_start", "worker_start", "worker_exit", ...
  std::uint64_t epoch = 0;
  std::optional<int> slot;  // none: the event is not about one rank
  std::vector<EventField> fields;
};

struct EventTimes {
  std::chrono::system_clock::time_point wall;
  std::chrono::steady_clock::time_point steady;
};

/// One line, without the newline: {"time": ..., "mono_ns": ..., "host": ..., "epoch": ..., "slot":
/// ..., "kind": ..., ...}. "time" is seconds since 1970; "mono_ns" counts from the start of the
/// machine and is what events of one node are ordered by. "slot" is null where there is none.
std::string event_line(const Event& event, std::string_view host, const EventTimes& times);

/// The events of one agent, appended to RUN/events.jsonl.
///
/// A line is written with one call, so that a reader sees whole lines. Nothing here throws because
/// of a full disk; LogFile says how that is handled. Not thread-safe.
class EventLog {
 public:
  struct Options {
    std::string path;  // empty: no file
    std::string host;
    std::function<void(const std::string& line)> listener;  // for --json; gets no newline
    std::function<void(const std::string& message)> warn = [](const std::string&) {};
  };

  explicit EventLog(Options options);

  void write(const Event& event);

 private:
  Options options_;
  std::optional<LogFile> file_;
};

}  // namespace lockstep
