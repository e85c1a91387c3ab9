#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launch/endpoint.h"

namespace lockstep {

struct FindHeadOptions {
  std::string secret;
  bool tls = false;
  std::chrono::milliseconds patience = std::chrono::seconds(20);
};

/// The endpoint at which the job's coordinator is reached from here, the first that answers; those
/// in front are tried a little earlier: a machine has many addresses, and only a connection shows
/// which of them counts. Both ends have proven that they know the secret.
///
/// Throws SystemError when none has answered for `patience`, with what happened at each.
Endpoint find_head(const std::vector<Endpoint>& endpoints, const FindHeadOptions& options);

}  // namespace lockstep
