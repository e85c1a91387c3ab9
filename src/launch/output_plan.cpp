#include "launch/output_plan.h"

#include <unistd.h>

namespace lockstep {
namespace {

bool has(Streams streams, OutputStream stream) {
  return (static_cast<int>(streams) & static_cast<int>(stream)) != 0;
}

std::string prefix_template(const RunOptions& options) {
  if (options.prefix) return *options.prefix;
  return options.tee_prefix.value_or(std::string(kDefaultLinePrefix));
}

}  // namespace

OutputPlan plan_output(OutputStream stream, const RunOptions& options, const WorkerLogs& logs,
                       LinePrefixValues prefix, const Environment& environment) {
  const bool is_error = stream == OutputStream::err;
  const std::string& log = is_error ? logs.stderr_log : logs.stdout_log;
  const bool teed = has(options.tee.of(prefix.local_rank), stream);
  const bool to_file =
      (teed || has(options.redirects.of(prefix.local_rank), stream)) && !log.empty();
  const bool shown =
      !options.local_ranks_filter || options.local_ranks_filter->contains(prefix.local_rank);

  OutputPlan plan;
  StreamOptions& to = plan.stream;
  to.file = to_file ? log : "";
  to.max_bytes = options.log_max_bytes.value_or(0);
  to.console = shown && (teed || !to_file);
  to.console_fd = is_error || options.json ? STDERR_FILENO : STDOUT_FILENO;
  to.keep_tail = is_error;
  prefix.stream = is_error ? "stderr" : "stdout";
  if (teed || options.prefix) {
    to.prefix = LinePrefix(prefix_template(options), prefix);
    to.colour = shows_colours(to.console_fd, environment);
  }
  if (teed && shown) {
    to.needles = is_error ? options.duplicate_stderr_filters : options.duplicate_stdout_filters;
    to.filtered_file = is_error ? logs.filtered_stderr : logs.filtered_stdout;
  }
  to.terminal = to.console && !to_file && to.prefix.empty() && ::isatty(to.console_fd) == 1;

  if (to_file && !to.console && to.max_bytes == 0) {
    plan.kind = OutputPlan::Kind::file;
    plan.file = log;
  } else if (to_file || is_error || (to.console && (!to.prefix.empty() || options.json))) {
    plan.kind = OutputPlan::Kind::pump;
  } else {
    plan.kind = to.console ? OutputPlan::Kind::inherit : OutputPlan::Kind::null;
  }
  return plan;
}

}  // namespace lockstep
