#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "etcd/etcd_api.h"
#include "launch/leader_keys.h"
#include "launch/messages.h"

namespace lockstep {

struct LeadershipOptions {
  LeaderKeys keys;
  Leader self;                                           // without its term
  Time lease = std::chrono::seconds(3);                  // a leader that dies is missed after this
  Time look_interval = std::chrono::seconds(1);          // while all is well
  Time hurry_interval = std::chrono::milliseconds(250);  // while there is no leader
  Time end_is_kept = std::chrono::minutes(10);           // of a job that is over
};

// What it asks for.

/// Answered by on_reply() or on_failure(). Only one at a time.
struct AskEtcd {
  EtcdRequest request;
};
/// This node's coordinator decides from now on. The record is what the one before has left.
struct Lead {
  std::uint64_t term = 0;
  std::string record;  // empty: there is none
};
/// Another's does, and this node's, if there is one, decides nothing any more.
struct Follow {
  Leader leader;
};
/// This node's coordinator decides nothing any more, and whose does is not known yet.
struct GiveUp {};
/// The record that was given is in etcd.
struct RecordKept {
  std::uint64_t number = 0;
};
struct LeadershipSays {
  std::string text;
};

using LeadershipAction = std::variant<AskEtcd, Lead, Follow, GiveUp, RecordKept, LeadershipSays>;

/// Decides through etcd which node of a job hosts its coordinator. One per node.
///
/// The node that creates the leader's key, with a lease, leads; who finds it follows. A leader that
/// dies loses the lease, and another node takes the key. Every leader has a term, one more than the
/// one before; a node never goes back to an earlier one. While etcd is away nothing changes: the
/// leader leads on, and nobody can take its place; but new epochs wait, because records are written
/// only under the leader's own key. When etcd is back without the key, the leader writes it again.
/// A request may also be served late, when it was given up and others have followed; so each write
/// holds only if all that it builds on is as it was seen.
///
/// Like Coordinator it has no clock and no socket.
class Leadership {
 public:
  using Actions = std::vector<LeadershipAction>;

  Leadership(const LeadershipOptions& options, Time now);

  Actions on_reply(std::string_view body, Time now);
  Actions on_failure(const std::string& reason, Time now);

  /// Whether the node hears its coordinator. As long as it does, the coordinator lives, whatever
  /// etcd says, and nobody takes its key.
  Actions on_touch(bool in_touch, Time now);

  /// Writes a record, if this node leads; RecordKept with this number follows. The latest one
  /// counts.
  Actions keep(std::string record, std::uint64_t number, Time now);

  /// The job is over: leaves in etcd only its record, for a while, so that nodes that were cut off
  /// hear the end and do not begin the job again. resigned() tells when that is done, or has
  /// failed.
  Actions resign(Time now);
  bool resigned() const { return resigned_; }

  Actions on_time(Time now);
  Time next_deadline() const;

  bool leads() const { return leads_; }
  std::uint64_t term() const { return term_; }
  const std::string& trouble() const { return trouble_; }  // with etcd; empty: none

 private:
  enum class Asked {
    nothing,
    look,
    lease,
    claim,
    keep_alive,
    record,
    last_lease,
    last_record,
    revocation
  };

  void ask(Asked what, EtcdRequest request);
  void next();
  void after_look(const std::vector<EtcdValue>& values);
  void after_claim(const EtcdTxnReply& reply);
  void decide();
  void claim();
  void lead();
  void follow(const Leader& leader);
  void stop_leading();
  void take(Asked asked, std::string_view body);
  void say(std::string text) { actions_.emplace_back(LeadershipSays{std::move(text)}); }
  Actions take_actions() { return std::move(actions_); }

  LeadershipOptions options_;
  Time now_{0};
  Asked asked_ = Asked::nothing;
  Time next_look_{0};
  std::uint64_t term_ = 0;  // the highest that this node has led or followed in
  std::string leader_id_;   // in that term; empty: nobody yet
  bool leads_ = false;
  bool in_touch_ = false;
  bool wants_claim_ = false;
  bool resigns_ = false;
  bool resigned_ = false;
  bool told_forgery_ = false;
  std::string trouble_;

  // As etcd was seen last.
  EtcdRevision leader_revision_ = 0;  // of the leader's key; 0: there is none
  EtcdRevision term_revision_ = 0;
  EtcdRevision record_revision_ = 0;  // of the record, also as this node has written it since
  std::uint64_t seen_term_ = 0;
  std::optional<Leader> seen_leader_;  // as the key says, if it can be believed
  std::string seen_record_;

  EtcdLease lease_ = 0;
  bool lease_is_alive_ = false;       // as far as is known
  bool looked_ = false;               // since the lease was last kept alive
  EtcdRevision own_revision_ = 0;     // of the leader's key, as this node wrote it
  std::uint64_t claimed_term_ = 0;    // of the claim that is under way
  std::string record_;                // the latest
  std::uint64_t written_number_ = 0;  // of the one that is under way
  std::uint64_t record_number_ = 0;   // of it
  bool record_is_kept_ = true;
  Actions actions_;
};

}  // namespace lockstep
