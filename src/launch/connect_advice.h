#pragma once

#include <string>

#include "launch/endpoint.h"

namespace lockstep {

/// What can be done about a connection that could not be made. `error` is a value of errno;
/// ETIMEDOUT where nobody answered.
std::string connect_advice(int error, const Endpoint& server);

/// The same where the name is not known.
std::string lookup_advice(const Endpoint& server);

}  // namespace lockstep
