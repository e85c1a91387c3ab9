#include "doctor/remote_doctors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

#include "cluster/start_failure.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeToEnd{10};
constexpr std::size_t kMostErrors = std::size_t{64} << 10;

std::vector<std::string> lines_in(const UniqueFd& file) {
  struct stat info = {};
  ::fstat(file.get(), &info);
  std::string text(std::min(static_cast<std::size_t>(info.st_size), kMostErrors), '\0');
  const ssize_t count =
      ::pread(file.get(), text.data(), text.size(), info.st_size - static_cast<off_t>(text.size()));
  text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

RemoteDoctors::RemoteDoctors(EventLoop& loop, const HeadPlan& plan,
                             const std::vector<std::vector<Endpoint>>& endpoints)
    : loop_(loop) {
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    auto remote = std::make_unique<Remote>(Remote{.node = plan.nodes[i]});
    remote->node.brief.endpoints = endpoints[i];
    start(*remote);
    remotes_.push_back(std::move(remote));
  }
}

void RemoteDoctors::start(Remote& remote) {
  remote.errors = UniqueFd(::memfd_create("lockstep doctor", MFD_CLOEXEC));
  if (!remote.errors) throw_errno("cannot make memory for a program's output");
  // Only this process writes to standard output: it may be a JSON document.
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  try {
    const StartCommand command =
        start_command(remote.node.starter, remote.node.host, {"doctor", "--agent"},
                      encode(remote.node.brief), remote.node.brief.node_rank);
    remote.starter = std::make_unique<Starter>(
        loop_, command, Starter::Output{.stdout_fd = null.get(), .stderr_fd = remote.errors.get()},
        [&remote](const ExitStatus& status) {
          remote.ended = true;
          remote.status = status;
        });
  } catch (const Error& error) {
    remote.ended = true;
    remote.refused = error.what();
  }
}

std::size_t RemoteDoctors::ended() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(remotes_, [](const auto& each) { return each->ended; }));
}

std::size_t RemoteDoctors::failed(const std::set<std::string>& here) const {
  return static_cast<std::size_t>(std::ranges::count_if(remotes_, [&](const auto& each) {
    return each->ended && !here.contains(each->node.brief.host);
  }));
}

Findings RemoteDoctors::absences(const std::set<std::string>& here,
                                 std::chrono::milliseconds limit) const {
  Findings findings;
  for (const auto& remote : remotes_) {
    const HeadNode& node = remote->node;
    if (here.contains(node.brief.host)) continue;
    FindingList list(node.host.name, findings);
    if (!remote->ended) {
      list.error(
          "nodes",
          concat("its doctor was started and did not come within ", limit.count() / 1000, " s to ",
                 node.brief.endpoints.front().to_string(), " or another address of this machine"),
          "let it connect to this machine, or name an address and an open port of it with "
          "--rdzv-endpoint HOST:PORT");
      continue;
    }
    const std::string what =
        !remote->refused.empty()
            ? remote->refused
            : explain_start_failure(node.starter.kind, node.host.name, node.starter.lockstep,
                                    remote->status, lines_in(remote->errors));
    list.error("start", what,
               concat("`lockstep run` would fail in the same way; try by hand: ",
                      to_string(node.starter.kind), " ", node.host.name, " ", node.starter.lockstep,
                      " version"));
  }
  return findings;
}

void RemoteDoctors::wait() {
  const auto deadline = Clock::now() + kTimeToEnd;
  while (ended() < remotes_.size() && Clock::now() < deadline) {
    loop_.run_once(std::chrono::milliseconds(50));
  }
}

}  // namespace lockstep
