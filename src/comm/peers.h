#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// What identifies a process beyond its rank. It travels as text through the store.
struct PeerIdentity {
  std::string machine;  // the kernel's boot id, the process namespace, and LOCKSTEP_MACHINE
  std::string host;     // for people
  int process_id = 0;
  unsigned long start_time = 0;  // tells a process from a later one with the same number
  int node_rank = 0;             // the launcher's number of its node

  static PeerIdentity of_this_process(int node_rank = 0);
  static std::optional<PeerIdentity> parse(const std::string& text);
  std::string to_text() const;

  /// Whether the process has ended, as far as this machine can see; empty for another machine.
  std::optional<bool> has_ended() const;
};

/// Who is behind each rank. Ranks that are not lockstep programs have no entry.
class Peers {
 public:
  explicit Peers(std::vector<std::optional<PeerIdentity>> identities)
      : identities_(std::move(identities)) {}

  /// Those of `ranks` whose process on this machine is gone. A process that is just dying may need
  /// a moment between closing its connections and ending, so this looks for up to half a second
  /// until it finds one.
  std::vector<int> find_dead(const std::vector<int>& ranks) const;

  /// " on host b, process 123", or nothing where it is not known.
  std::string describe(int rank) const;

  /// Whether a rank of this machine is gone; false where that cannot be told.
  bool has_ended(int rank) const;

  /// The lowest rank on the node of that number; nothing where none is known to be there.
  std::optional<int> first_on_node(int node_rank) const;

  /// Whether the rank is a lockstep program.
  bool knows(int rank) const;

  /// The rank's identity; it must be known.
  const PeerIdentity& identity(int rank) const;

 private:
  std::vector<std::optional<PeerIdentity>> identities_;
};

}  // namespace lockstep
