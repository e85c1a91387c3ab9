#include "launch/find_stacks.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>

#include "launch/own_stacks.h"
#include "launch/process_state.h"
#include "launch/stack_text.h"
#include "launch/stack_tools.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr auto kLongerThanADiskAccess = std::chrono::milliseconds(100);

// What is said of one rank.
struct Description {
  std::string text;
  bool complete = false;  // it says where the process stands
};

bool waits_in_kernel(const ProcessState& process) {
  return std::any_of(process.threads.begin(), process.threads.end(),
                     [](const ThreadState& thread) { return thread.state == 'D'; });
}

std::string indented(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) {
    text += concat("  (", line, ")\n");
  }
  return text;
}

// Where no tool is installed, or none has answered.
void read_by_ourselves(const ProcessState& process, std::chrono::milliseconds time_limit,
                       ToolStacks& stacks) {
  OwnStacks own = read_stacks(process, time_limit);
  stacks.native = std::move(own.stacks);
  if (!own.problem.empty()) stacks.notes.push_back(own.problem);
  if (own.not_permitted) stacks.notes.push_back(permission_hint(process));
}

std::string ask_and_describe(const StackTools& tools, const ProcessState& process,
                             const StackOptions& options) {
  ToolStacks stacks = ask_tools(tools, process, options.time_limit);
  if (stacks.native.empty() && options.by_ourselves) {
    read_by_ourselves(process, options.time_limit, stacks);
  }
  std::string text = process.is_stopped() ? "  the process is stopped by a signal\n" : "";
  if (!stacks.python.empty()) {
    text += concat("  Python:\n", stacks_in_words(stacks.python, process));
    text += stacks.native.empty() ? "" : "  native:\n";
  }
  text += stacks_in_words(stacks.native, process);
  if (stacks.python.empty() && stacks.native.empty()) {
    text += states_in_words(process);
  }
  return text + indented(stacks.notes);
}

Description describe(pid_t rank_pid, const StackTools& tools, const StackOptions& options) {
  const pid_t pid = behind_shells(rank_pid);
  auto process = inspect_process(pid);
  if (process && waits_in_kernel(*process)) {
    // A disk access looks the same and is over in a moment.
    std::this_thread::sleep_for(kLongerThanADiskAccess);
    process = inspect_process(pid);
  }
  if (!process) {
    return {.text = "  there is no such process any more\n", .complete = false};
  }
  if (process->has_ended()) {
    return {.text = "  the process has ended and its parent has not noticed yet\n",
            .complete = false};
  }
  if (process->tracer != 0) {
    return {.text = states_in_words(*process) + "  (process " + std::to_string(process->tracer) +
                    " already looks into it; end that for more)\n",
            .complete = true};
  }
  // A debugger would wait for it to leave the kernel, and so would we.
  if (waits_in_kernel(*process)) {
    return {.text = states_in_words(*process), .complete = true};
  }
  return {.text = ask_and_describe(tools, *process, options), .complete = true};
}

std::vector<Description> describe_all(const std::vector<RankProcess>& ranks,
                                      const StackTools& tools, const StackOptions& options) {
  std::vector<Description> descriptions(ranks.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t index = next++; index < ranks.size(); index = next++) {
      try {
        descriptions[index] = describe(ranks[index].pid, tools, options);
      } catch (const std::exception& error) {
        descriptions[index].text = concat("  ", error.what(), "\n");
      }
    }
  };
  const std::size_t at_once = options.parallel > 0
                                  ? static_cast<std::size_t>(options.parallel)
                                  : std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (std::size_t count = 0; count < std::min(at_once, ranks.size()); ++count) {
    threads.emplace_back(work);
  }
  threads.clear();
  return descriptions;
}

std::vector<std::string> missing_tools(const StackTools& tools,
                                       const std::vector<RankProcess>& ranks) {
  const bool any_python = std::any_of(ranks.begin(), ranks.end(), [](const RankProcess& rank) {
    const auto process = inspect_process(behind_shells(rank.pid));
    return process && process->python;
  });
  std::vector<std::string> advice;
  if (!tools.any_native()) {
    advice.push_back("To see lines of the sources, install gdb or elfutils (eu-stack).");
  }
  if (any_python && !tools.py_spy) {
    advice.push_back("To see lines of Python, install py-spy (pip install py-spy).");
  }
  return advice;
}

}  // namespace

NodeStacks find_stacks(const std::vector<RankProcess>& ranks, const StackOptions& options) {
  const StackTools tools = StackTools::on(
      options.path ? *options.path : Environment::of_process().get("PATH").value_or(""));
  NodeStacks stacks;
  const std::vector<Description> descriptions = describe_all(ranks, tools, options);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    stacks.ranks.push_back({.rank = ranks[i].rank,
                            .pid = ranks[i].pid,
                            .text = descriptions[i].text,
                            .complete = descriptions[i].complete});
  }
  stacks.advice = missing_tools(tools, ranks);
  return stacks;
}

}  // namespace lockstep
