#include "launch/stack_of_job.h"

#include <poll.h>
#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <ostream>

#include "core/rank_list.h"
#include "core/unix_socket.h"
#include "launch/find_stacks.h"
#include "launch/json_fields.h"
#include "launch/option_values.h"
#include "launch/run_directory.h"
#include "launch/stack_desk.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kWayLeeway{10};  // for what is between

struct StackArguments {
  std::string job;                                             // the beginning of its id
  std::optional<std::string> here;                             // a run directory
  std::optional<int> rank;                                     // of it, and quickly
  std::chrono::milliseconds limit = std::chrono::seconds(20);  // for other nodes to answer
};

StackArguments parse_arguments(const std::vector<std::string>& words) {
  StackArguments arguments;
  const auto value_of = [&](std::size_t& at) {
    if (at + 1 == words.size()) throw InvalidArgument(concat(words[at], " needs a value"));
    return words[++at];
  };
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (words[at] == "--here") {
      arguments.here = value_of(at);
    } else if (words[at] == "--rank") {
      arguments.rank = parse_int_at_least({.source = "--rank", .text = value_of(at)}, 0);
    } else if (words[at] == "--limit") {
      const auto seconds = parse_positive_seconds({.source = "--limit", .text = value_of(at)});
      if (seconds > std::chrono::hours(1)) throw InvalidArgument("--limit is more than an hour");
      arguments.limit = std::chrono::ceil<std::chrono::milliseconds>(seconds);
    } else if (words[at].starts_with("-")) {
      throw InvalidArgument(concat("stack has no option '", words[at], "'; see stack --help"));
    } else if (!arguments.job.empty()) {
      throw InvalidArgument(concat("stack takes one job, not '", words[at], "'"));
    } else {
      arguments.job = words[at];
    }
  }
  return arguments;
}

std::string describe(const JobRecord& job) {
  return concat(job.run_id, " (launcher ", job.pid, ", started ", job.started, ")");
}

// All workers that the job has are under this launcher.
bool is_on_one_node(const JobRecord& job) {
  return job.workers.size() + job.left_out.size() >= static_cast<std::size_t>(job.world_size);
}

LiveJob choose_job(const std::vector<LiveJob>& jobs, const std::string& wanted) {
  std::vector<LiveJob> meant;
  for (const LiveJob& job : jobs) {
    if (job.record.run_id.starts_with(wanted)) meant.push_back(job);
  }
  if (meant.size() == 1) return meant.front();
  // Several nodes of one job may be on this machine; any of them knows all.
  const bool one_id = std::ranges::all_of(
      meant, [&](const LiveJob& job) { return job.record.run_id == meant.front().record.run_id; });
  const auto node =
      std::ranges::find_if(meant, [](const LiveJob& job) { return !is_on_one_node(job.record); });
  if (one_id && node != meant.end()) return *node;
  if (meant.empty() && (wanted.empty() || jobs.empty())) {
    throw InvalidArgument("no job of this user runs on this machine");
  }
  const std::vector<LiveJob>& shown = meant.empty() ? jobs : meant;
  std::string list;
  for (const LiveJob& job : shown) list += concat(list.empty() ? "" : ", ", describe(job.record));
  throw InvalidArgument(
      concat(meant.empty() ? concat("no running job has an id that begins with '", wanted, "'")
                           : std::string("more than one job runs"),
             "; name one of: ", list));
}

NodeStacks stacks_here(const JobRecord& record, const StackOptions& options) {
  std::vector<RankProcess> ranks;
  for (const WorkerRecord& worker : record.workers) {
    // A worker that has ended may have left its number to another process.
    if (process_start_time(worker.pid) != worker.start_time) continue;
    ranks.push_back({.rank = worker.rank, .pid = worker.pid});
  }
  NodeStacks stacks = find_stacks(ranks, options);
  stacks.host = record.host;
  return stacks;
}

struct Answers {
  std::vector<NodeStacks> nodes;
  std::vector<std::string> missing;
  std::string problem;  // why there may be more
};

// What the launcher sends until it closes the connection; false when the time is over.
bool read_all(const UniqueFd& socket, Clock::duration limit, std::string& text) {
  const auto deadline = Clock::now() + limit;
  std::array<char, 64 << 10> buffer;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) == 0) return false;
    const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (count == 0) return true;
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count < 0 && errno != EAGAIN && errno != EINTR) return true;
  }
}

// Asks this node's launcher, which asks the coordinator, which asks all nodes.
Answers ask_all_nodes(const std::string& run_directory, std::chrono::milliseconds limit) {
  Answers answers;
  std::string text;
  try {
    const UniqueFd socket = connect_to_path(stack_socket(run_directory));
    const std::string question = stack_question(limit);
    if (::send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL) < 0) {
      throw_errno("send");
    }
    if (!read_all(socket, limit + kWayLeeway, text))
      answers.problem = "the launcher does not answer";
  } catch (const SystemError& error) {
    answers.problem = error.what();
  }
  bool complete = false;
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (auto node = node_stacks_from_json(line)) {
      answers.nodes.push_back(*std::move(node));
    } else if (const auto json = parse_json(line); json && json->contains("missing")) {
      complete = true;
      for (const Json& host : (*json)["missing"]) {
        if (host.is_string()) answers.missing.push_back(host.get<std::string>());
      }
    }
  }
  if (!complete && answers.problem.empty())
    answers.problem = "the launcher ended before it had answered";
  return answers;
}

// Prints what was found, then what was not. Whether that is all.
bool print_answers(const Answers& answers, const JobRecord& record, std::ostream& out) {
  std::vector<bool> seen(static_cast<std::size_t>(std::max(record.world_size, 0)));
  bool complete = answers.missing.empty() && answers.problem.empty();
  for (const NodeStacks& node : answers.nodes) {
    for (const RankStack& rank : node.ranks) {
      complete = complete && rank.complete;
      if (rank.rank >= 0 && rank.rank < record.world_size) {
        seen[static_cast<std::size_t>(rank.rank)] = true;
      }
    }
  }
  for (const int place : record.left_out) {
    if (place >= 0 && place < record.world_size) seen[static_cast<std::size_t>(place)] = true;
  }
  print_stacks(answers.nodes, out);
  if (!answers.problem.empty()) {
    out << "Other nodes could not be asked: " << answers.problem << "\n";
  }
  for (const std::string& host : answers.missing) {
    out << "No answer from " << host << "\n";
  }
  std::vector<int> unseen;
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (!seen[rank]) unseen.push_back(static_cast<int>(rank));
  }
  if (unseen.empty()) return complete;
  out << "Nothing is known of " << list_ranks(unseen)
      << (unseen.size() == 1 ? ": it has ended, or its node did not answer\n"
                             : ": they have ended, or their nodes did not answer\n");
  return false;
}

int print_stacks_of(const LiveJob& job, std::chrono::milliseconds limit, std::ostream& out) {
  const JobRecord& record = job.record;
  const bool one_node = is_on_one_node(record);
  out << "job " << describe(record) << ", epoch " << record.epoch << ", ";
  if (one_node) {
    out << record.workers.size() << (record.workers.size() == 1 ? " rank\n" : " ranks\n");
  } else {
    out << record.workers.size() << " of " << record.world_size << " ranks under this launcher\n";
  }
  out.flush();
  Answers answers;
  if (!one_node) answers = ask_all_nodes(job.path, limit);
  // Also where the launcher does not answer, its own ranks can be looked at.
  if (answers.nodes.empty()) answers.nodes.push_back(stacks_here(record, {}));
  if (record.world_size == 0 || (one_node && answers.nodes.front().ranks.empty())) {
    out << "the job has no running rank\n";
    return 1;
  }
  return print_answers(answers, record, out) ? 0 : 1;
}

// For the launcher: on behalf of another node, which waits for no longer than the limit, or of one
// rank that hangs, while all others wait for it, so that slow tools are left alone.
int print_stacks_here(const StackArguments& arguments, std::ostream& out) {
  auto record = read_job(*arguments.here);
  if (!record) throw InvalidArgument(concat("there is no job.json in '", *arguments.here, "'"));
  StackOptions options{.time_limit = arguments.limit / 2};
  if (arguments.rank) {
    std::erase_if(record->workers,
                  [&](const WorkerRecord& worker) { return worker.rank != *arguments.rank; });
    options.path = "";
  }
  out << to_json(stacks_here(*record, options)) << "\n";
  return 0;
}

}  // namespace

int stack_of_job(const std::vector<std::string>& arguments, const Environment& environment,
                 std::ostream& out) {
  if (!arguments.empty() && (arguments[0] == "-h" || arguments[0] == "--help")) {
    out << "usage: lockstep stack [--limit SECONDS] [JOB]\n\n"
           "Shows where every rank of a job stands, on all of its nodes, also of stopped "
           "processes.\n"
           "One of its launchers must run on this machine. JOB is the beginning of the job's id; "
           "it\n"
           "may be left out while only one job runs. Nodes that do not answer within the limit (20 "
           "s)\n"
           "are named.\n\n"
           "usage: lockstep stack --here RUN_DIRECTORY [--rank RANK] [--limit SECONDS]\n\n"
           "The ranks of one launcher, or one of them, as a line of JSON: what launchers ask each "
           "other\nfor.\n";
    return 0;
  }
  const StackArguments given = parse_arguments(arguments);
  if (given.here) return print_stacks_here(given, out);
  return print_stacks_of(choose_job(find_live_jobs(environment), given.job), given.limit, out);
}

}  // namespace lockstep
