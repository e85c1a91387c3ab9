#pragma once

#include <string>

#include "lockstep/error.h"

namespace lockstep::testing {

/// What a call that must be refused says; "accepted" when it is not.
template <typename Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace lockstep::testing
