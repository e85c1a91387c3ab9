#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/messages.h"
#include "launch/network_choice.h"

namespace lockstep {

/// Finds out, for a coordinator, over which addresses the nodes of a job reach each other. Like the
/// coordinator it has no clock and no socket: it says what each node is to be asked, and takes the
/// answers.
///
/// First all nodes say where they may be reached. Then they try each other's favourite addresses,
/// and only if one of those is not reached, all. What a node is asked and has to do does not grow
/// with the job: up to nine nodes try all others, of more each tries eight, its neighbours at
/// distances of 1, 2, 4 and 8 on both sides.
///
/// Only answers of all nodes to the same question decide. Whoever owns this gives it up when one of
/// its nodes is lost or comes back over another connection, and begins another one.
class NetworkSurvey {
 public:
  struct Member {
    std::string id;
    std::string host;
    std::string settled;  // the address that an earlier survey chose; empty: it is new
  };

  /// Rounds are numbered from this one on; it takes up to kRounds of them.
  NetworkSurvey(std::uint64_t first_round, std::vector<Member> members);
  static constexpr std::uint64_t kRounds = 3;

  const std::vector<Member>& members() const { return members_; }
  bool has(const std::string& id) const { return indices_.contains(id); }

  /// What a node is asked now; std::nullopt: it has answered, or is no member.
  std::optional<Message> question(const std::string& id) const;

  /// Whether that was the last answer to a question: there is a choice now, or another question.
  bool on_answer(const std::string& id, const Addresses& answer);
  bool on_answer(const std::string& id, const Probed& answer);

  /// Set when it is over.
  const std::optional<NetworkChoice>& choice() const { return choice_; }
  /// The numeric addresses that were chosen, by member; only where a network was found.
  std::vector<std::string> chosen() const;

  /// Hosts whose answers are awaited.
  std::vector<std::string> silent() const;

 private:
  enum class Stage { addresses, favourites, all };

  std::optional<std::size_t> index_of(const std::string& id) const;
  std::vector<std::size_t> neighbours(std::size_t index) const;
  ProbeNodes probes_of(std::size_t index) const;
  bool note_answer(std::size_t index, std::uint64_t round);
  void move_on();

  std::vector<Member> members_;
  std::map<std::string, std::size_t> indices_;  // of members, by id
  std::vector<SurveyedNode> nodes_;
  Stage stage_ = Stage::addresses;
  std::uint64_t round_;
  std::set<std::size_t> answered_;
  std::vector<Unreached> unreached_;  // in this round
  std::optional<NetworkChoice> choice_;
};

}  // namespace lockstep
