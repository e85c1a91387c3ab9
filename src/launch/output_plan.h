#pragma once

#include <string>

#include "launch/line_prefix.h"
#include "launch/log_layout.h"
#include "launch/log_pump.h"
#include "launch/options.h"

namespace lockstep {

enum class OutputStream { out = 1, err = 2 };  // the values are the descriptors

/// What a worker gets as standard output or standard error.
struct OutputPlan {
  enum class Kind {
    inherit,  // the agent's own
    null,     // the null device
    file,     // `file`, opened at its end; the tail is read from there
    pump,     // what LogPump::open(.., stream) returns
  };
  Kind kind = Kind::inherit;
  std::string file;
  StreamOptions stream;
};

/// Puts --redirects, --tee, --local-ranks-filter, the filters, --prefix and rotation together.
/// `prefix` has the worker's names; its local rank is the one that the maps speak of.
///
/// As torchrun: a stream that is neither redirected nor tee'd is the agent's own, without prefix;
/// with --log-dir /dev/null so is one that is redirected only. Beyond it: standard error of such a
/// worker passes through the pump, so that its last lines can be reported, on a terminal by way of
/// a pseudo terminal; --prefix makes every line on the console have one; with --json standard
/// output carries events only, and what workers would have written there goes to standard error.
OutputPlan plan_output(OutputStream stream, const RunOptions& options, const WorkerLogs& logs,
                       LinePrefixValues prefix, const Environment& environment);

}  // namespace lockstep
