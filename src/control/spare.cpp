#include "control/spare.h"

#include <cstdlib>

#include "control/agent_client.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kSpare = "LOCKSTEP_SPARE";

}  // namespace

bool is_spare(const Environment& environment) {
  return environment.get(kSpare) == "1" && environment.has("LOCKSTEP_AGENT");
}

void wait_as_spare() {
  const Environment environment = Environment::of_process();
  if (!is_spare(environment)) return;
  const auto agent = AgentClient::from_environment(environment);
  std::optional<TakePlace> place;
  while (!place && !agent->stop_requested() && agent->problem().empty()) {
    place = agent->await_place(std::chrono::hours(1));
  }
  if (!place) {
    throw Aborted(concat("this process was a spare, and no place is left for it: ",
                         agent->stop_requested() ? agent->stop_reason() : agent->problem()));
  }
  // In the process itself, because programs ask for LOCAL_RANK and the like, too.
  for (const auto& [name, value] : place->variables) {
    ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  ::unsetenv(kSpare);
}

}  // namespace lockstep
