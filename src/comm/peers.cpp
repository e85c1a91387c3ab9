#include "comm/peers.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "lockstep/error.h"

namespace lockstep {
namespace {

std::string read_first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct ProcessStat {
  char state = '?';
  unsigned long start_time = 0;
};

// Fields 3 and 22 of /proc/PID/stat. The name in field 2 may hold anything, so fields are counted
// from its closing parenthesis.
std::optional<ProcessStat> read_stat(int process_id) {
  const std::string line = read_first_line(concat("/proc/", process_id, "/stat"));
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  ProcessStat stat;
  fields >> stat.state;
  std::string skipped;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  fields >> stat.start_time;
  return stat;
}

std::string machine_name() {
  // Process numbers mean something only inside one process namespace of one running kernel.
  struct stat status {};
  const auto process_namespace = stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
  // Ranks that are told apart do not share memory: several machines on one, for tests.
  const char* told = std::getenv("LOCKSTEP_MACHINE");
  std::string name = concat(read_first_line("/proc/sys/kernel/random/boot_id"), "/",
                            process_namespace, told == nullptr ? "" : concat("/", told));
  std::ranges::replace(name, ' ', '_');  // it travels as one word
  return name;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

}  // namespace

PeerIdentity PeerIdentity::of_this_process(int node_rank) {
  const int process_id = getpid();
  const auto stat = read_stat(process_id);
  return {.machine = machine_name(),
          .host = host_name(),
          .process_id = process_id,
          .start_time = stat ? stat->start_time : 0,
          .node_rank = node_rank};
}

std::string PeerIdentity::to_text() const {
  return concat(machine, " ", process_id, " ", start_time, " ", host, " ", node_rank);
}

std::optional<PeerIdentity> PeerIdentity::parse(const std::string& text) {
  PeerIdentity identity;
  std::istringstream fields(text);
  if (fields >> identity.machine >> identity.process_id >> identity.start_time >> identity.host >>
      identity.node_rank) {
    return identity;
  }
  return std::nullopt;
}

std::optional<bool> PeerIdentity::has_ended() const {
  static const std::string this_machine = machine_name();
  if (machine != this_machine) return std::nullopt;
  const auto stat = read_stat(process_id);
  if (!stat || stat->start_time != start_time) return true;
  return stat->state == 'Z' || stat->state == 'X';
}

std::vector<int> Peers::find_dead(const std::vector<int>& ranks) const {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    std::vector<int> dead;
    bool can_tell = false, sees_all = true;
    for (int rank : ranks) {
      if (!knows(rank)) continue;
      const PeerIdentity& peer = identity(rank);
      const auto ended = peer.has_ended();
      sees_all &= ended.has_value();
      can_tell |= ended.has_value() && peer.process_id != getpid();
      if (ended.value_or(false)) dead.push_back(rank);
    }
    // Where it may well be on another machine, the others are not kept waiting for its name.
    const std::chrono::milliseconds longest(sees_all ? 500 : 25);
    const bool over = std::chrono::steady_clock::now() - start > longest;
    if (!dead.empty() || !can_tell || over) return dead;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string Peers::describe(int rank) const {
  if (!knows(rank)) return "";
  const PeerIdentity& peer = identity(rank);
  return concat(" (process ", peer.process_id, " on ", peer.host, ")");
}

bool Peers::has_ended(int rank) const {
  return knows(rank) && identity(rank).has_ended().value_or(false);
}

std::optional<int> Peers::first_on_node(int node_rank) const {
  for (std::size_t rank = 0; rank < identities_.size(); ++rank) {
    const auto& peer = identities_[rank];
    if (peer && peer->node_rank == node_rank) return static_cast<int>(rank);
  }
  return std::nullopt;
}

bool Peers::knows(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  return index < identities_.size() && identities_[index].has_value();
}

const PeerIdentity& Peers::identity(int rank) const {
  return identities_.at(static_cast<std::size_t>(rank)).value();
}

}  // namespace lockstep
