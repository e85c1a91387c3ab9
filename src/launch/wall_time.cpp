#include "launch/wall_time.h"

#include <cstdio>
#include <ctime>

namespace lockstep {
namespace {

struct LocalTime {
  std::tm fields = {};
  int milliseconds = 0;
};

LocalTime local_time(std::chrono::system_clock::time_point when) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(when);
  const std::time_t seconds = std::chrono::system_clock::to_time_t(whole);
  LocalTime local;
  ::localtime_r(&seconds, &local.fields);
  local.milliseconds =
      static_cast<int>(std::chrono::floor<std::chrono::milliseconds>(when - whole).count());
  return local;
}

}  // namespace

std::string wall_time(std::chrono::system_clock::time_point when) {
  const LocalTime local = local_time(when);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &local.fields);
  const long minutes = local.fields.tm_gmtoff / 60;
  const long distance = minutes < 0 ? -minutes : minutes;
  char text[80];
  std::snprintf(text, sizeof text, "%s.%03d%c%02ld:%02ld", date, local.milliseconds,
                minutes < 0 ? '-' : '+', distance / 60, distance % 60);
  return text;
}

std::string clock_time(std::chrono::system_clock::time_point when) {
  const LocalTime local = local_time(when);
  char text[48];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%03d", local.fields.tm_hour, local.fields.tm_min,
                local.fields.tm_sec, local.milliseconds);
  return text;
}

}  // namespace lockstep
