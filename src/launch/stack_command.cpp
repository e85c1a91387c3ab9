#include "launch/stack_command.h"

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <climits>
#include <cstddef>
#include <map>
#include <thread>
#include <utility>

#include "launch/process_state.h"
#include "launch/stack_text.h"
#include "launch/stack_tools.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr auto kLongerThanADiskAccess = std::chrono::milliseconds(100);

// What is printed of one rank. Ranks with the same text are printed once.
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

std::string ask_and_describe(const StackTools& tools, const ProcessState& process,
                             std::chrono::milliseconds time_limit) {
  const ToolStacks stacks = ask_tools(tools, process, time_limit);
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

Description describe(pid_t rank_pid, const StackTools& tools,
                     std::chrono::milliseconds time_limit) {
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
  return {.text = ask_and_describe(tools, *process, time_limit), .complete = true};
}

std::vector<Description> describe_all(const std::vector<RankProcess>& ranks,
                                      const StackTools& tools, const StackOptions& options) {
  std::vector<Description> descriptions(ranks.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t index = next++; index < ranks.size(); index = next++) {
      try {
        descriptions[index] = describe(ranks[index].pid, tools, options.time_limit);
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

std::string name_of_this_host() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// "rank 3 (process 4711)", "ranks 0-2,5 (processes 4711, 4712, 4713, 4720)".
std::string title_of(const std::vector<RankProcess>& members) {
  std::vector<int> ranks;
  std::string pids;
  for (const RankProcess& member : members) {
    ranks.push_back(member.rank);
    pids += concat(pids.empty() ? "" : ", ", member.pid);
  }
  const bool one = members.size() == 1;
  return concat(one ? "rank " : "ranks ", format_ranks(ranks), one ? " (process " : " (processes ",
                pids, ")");
}

void print_groups(const std::vector<RankProcess>& ranks,
                  const std::vector<Description>& descriptions, std::ostream& out) {
  std::vector<std::pair<std::string, std::vector<RankProcess>>> groups;
  for (std::size_t index = 0; index < ranks.size(); ++index) {
    const std::string& text = descriptions[index].text;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& each) { return each.first == text; });
    if (group == groups.end()) {
      groups.push_back({text, {}});
      group = std::prev(groups.end());
    }
    group->second.push_back(ranks[index]);
  }
  for (const auto& [text, members] : groups) {
    out << title_of(members) << ":\n" << text;
  }
}

void print_missing_tools(const StackTools& tools, const std::vector<RankProcess>& ranks,
                         std::ostream& out) {
  const bool any_python = std::any_of(ranks.begin(), ranks.end(), [](const RankProcess& rank) {
    const auto process = inspect_process(behind_shells(rank.pid));
    return process && process->python;
  });
  if (!tools.any_native()) {
    out << "To see functions, install gdb or elfutils (eu-stack).\n";
  }
  if (any_python && !tools.py_spy) {
    out << "To see lines of Python, install py-spy (pip install py-spy).\n";
  }
}

// Ranks of other machines, by host.
void print_elsewhere(const std::map<std::string, std::vector<int>>& hosts, std::ostream& out) {
  for (const auto& [host, ranks] : hosts) {
    out << (ranks.size() == 1 ? "rank " : "ranks ") << format_ranks(ranks)
        << (ranks.size() == 1 ? " runs" : " run") << " on " << host
        << ": run lockstep stack there\n";
  }
}

}  // namespace

std::string format_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    text += concat(text.empty() ? "" : ",", ranks[first]);
    if (last != first) {
      text += concat("-", ranks[last]);
    }
    first = last + 1;
  }
  return text;
}

int stack_command(const std::vector<RankProcess>& ranks, const StackOptions& options,
                  std::ostream& out) {
  if (ranks.empty()) {
    out << "the job has no running rank\n";
    return 1;
  }
  const std::string this_host = options.this_host.empty() ? name_of_this_host() : options.this_host;
  std::vector<RankProcess> here;
  std::map<std::string, std::vector<int>> elsewhere;
  for (const RankProcess& rank : ranks) {
    if (rank.host.empty() || rank.host == this_host) {
      here.push_back(rank);
    } else {
      elsewhere[rank.host].push_back(rank.rank);
    }
  }
  std::sort(here.begin(), here.end(), [](const RankProcess& left, const RankProcess& right) {
    return left.rank < right.rank;
  });
  const StackTools tools = StackTools::on(
      options.path ? *options.path : Environment::of_process().get("PATH").value_or(""));
  const std::vector<Description> descriptions = describe_all(here, tools, options);
  print_groups(here, descriptions, out);
  print_missing_tools(tools, here, out);
  print_elsewhere(elsewhere, out);
  const bool all = std::all_of(descriptions.begin(), descriptions.end(),
                               [](const Description& each) { return each.complete; });
  return all && elsewhere.empty() ? 0 : 1;
}

}  // namespace lockstep
