#pragma once

#include <optional>
#include <string>

#include "lockstep/environment.h"

namespace lockstep {

/// `lockstep doctor --agent`, which a doctor starts on other machines: takes its brief, looks at
/// this machine in the environment that a job would have, and answers the head's questions.
int doctor_agent(const std::optional<std::string>& brief_file, const Environment& environment,
                 const std::string& version);

}  // namespace lockstep
