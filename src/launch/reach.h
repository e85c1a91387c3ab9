#pragma once

namespace lockstep {

/// How far an attempt to reach another machine has come.
enum class Reach {
  nothing,  // its name is not known, there is no way to it, or nothing comes back
  refused,  // the machine answers, and nobody listens there
  heard,    // somebody listens
};

}  // namespace lockstep
