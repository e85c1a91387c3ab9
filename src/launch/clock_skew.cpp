#include "launch/clock_skew.h"

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr Time kTolerance = std::chrono::seconds(5);

}  // namespace

std::optional<std::string> clock_warning(const std::string& host, Time theirs, Time ours) {
  const Time ahead = theirs - ours;
  if (ahead <= kTolerance && ahead >= -kTolerance) return std::nullopt;
  return concat("the clock of node ", host, " is ", whole_seconds(ahead > Time(0) ? ahead : -ahead),
                " s ", ahead > Time(0) ? "ahead of" : "behind", " the coordinator's: set it on ",
                host,
                " (timedatectl set-ntp true, or chronyc makestep); the job goes on, but times "
                "in its logs and files do not compare");
}

Time wall_clock_now() {
  return std::chrono::duration_cast<Time>(std::chrono::system_clock::now().time_since_epoch());
}

}  // namespace lockstep
