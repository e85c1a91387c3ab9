#include "launch/run_command.h"

#include <unistd.h>
#include <cstdio>

#include "launch/dry_run.h"
#include "launch/final_report.h"
#include "launch/help.h"
#include "launch/line_prefix.h"
#include "launch/node_shell.h"
#include "launch/parse_options.h"
#include "launch/run_directory.h"
#include "launch/secret.h"
#include "lockstep/error.h"

namespace lockstep {

std::function<void(const std::string&)> event_listener(const RunOptions& options, LogPump& pump) {
  const int fd = options.json ? STDOUT_FILENO : STDERR_FILENO;
  if (!options.json && options.event_log_handler != "console") return {};
  return [fd, &pump](const std::string& line) { pump.print(fd, line + "\n"); };
}

int run_job(JobPlan& plan, Console& console, const RunJobOptions& how) {
  if (!plan.secret.empty() || !plan.etcd.access.password.empty()) guard_secret();
  // Threads must not exist yet when the keeper is forked, nor signals be blocked.
  Keeper keeper;
  SignalInbox signals(plan.options.stop_signals);
  RunDirectory directory(
      {.path = plan.options.run_dir, .run_id = plan.options.rdzv_id, .host = plan.host},
      plan.environment);
  // What a temporary folder holds, nobody can name when he starts the job again.
  if (!plan.one_node && plan.options.run_dir) {
    plan.coordinator_log = directory.path() + "/coordinator.log";
  }
  LogPump pump;
  EventLog events({.path = directory.events_path(),
                   .host = plan.host,
                   .listener = event_listener(plan.options, pump),
                   .warn = [&](const std::string& text) { console.warn(text); }});
  LogLayout layout({.log_dir = plan.options.log_dir,
                    .run_directory = directory.path(),
                    .run_id = plan.options.rdzv_id});
  console.set_sink([&](std::string text) { pump.print(STDERR_FILENO, std::move(text)); });
  EventLoop loop;
  Finish finish;
  bool reports = true;
  {
    NodeShell shell(plan, {.loop = loop,
                           .keeper = keeper,
                           .pump = pump,
                           .signals = signals,
                           .layout = layout,
                           .events = events,
                           .console = console,
                           .directory = directory,
                           .lifeline = how.lifeline});
    finish = shell.run();
    reports = !how.coordinator_reports || !shell.heard_end();
  }
  if (finish.code != 0) {
    events.write({.kind = "failure",
                  .fields = {{"report", RawJson{to_json(report_of(plan.options, finish))}}}});
  }
  // As long as a slow reader takes, as without us; a signal ends the wait.
  while (!pump.drain_all(std::chrono::milliseconds(200)) && !signals.next()) {
  }
  console.set_sink({});
  if (finish.code != 0 && reports) {
    print_report(plan.options, finish, plan.environment, console);
  }
  directory.finish(finish.code == 0);
  // This node has done its part: the exit code of the job is the head's.
  return reports ? finish.code : 0;
}

RunOptions parse_options(LaunchCommand command, const std::vector<std::string>& arguments,
                         const Environment& environment) {
  return command == LaunchCommand::run ? parse_run_options(arguments, environment)
                                       : parse_launch_options(arguments, environment);
}

int run_command(LaunchCommand command, const RunOptions& options, const Environment& environment) {
  if (options.help) {
    std::fputs(help_text(command).c_str(), stdout);
    return 0;
  }
  if (options.prefix) check_line_prefix("--prefix", *options.prefix);
  Console console({.quiet = options.quiet});
  JobPlan plan = plan_job(options, environment);
  if (options.dry_run) {
    std::fputs(describe_plan(plan).c_str(), stdout);
    return 0;
  }
  for (const std::string& notice : options.notices) console.note(notice);
  if (const auto notice = omp_notice(environment, plan.workers)) console.note(*notice);
  return run_job(plan, console, {});
}

}  // namespace lockstep
