#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Where a job's coordinator is, as etcd tells it.
struct Leader {
  std::uint64_t term = 0;
  std::string id;    // of its node
  std::string host;  // for people
  std::string address;
  int port = 0;

  bool operator==(const Leader&) const = default;
};

/// What a job keeps in etcd, and how it is signed: who can write to etcd, but does not have the
/// job's secret, cannot make nodes believe anything. Without a secret nothing is signed.
struct LeaderKeys {
  std::string prefix = "/lockstep";
  std::string run_id;
  std::string secret;

  std::string folder() const { return prefix + "/" + run_id + "/"; }
  std::string leader() const { return folder() + "coordinator"; }
  std::string term() const { return folder() + "term"; }
  std::string record() const { return folder() + "record"; }

  /// The value to put under a key.
  std::string seal(const std::string& key, const std::string& text) const;
  /// What was sealed for this key; std::nullopt where that was nobody with the secret.
  std::optional<std::string> open(const std::string& key, std::string_view value) const;
};

std::string to_json(const Leader& leader);
std::optional<Leader> leader_from_json(std::string_view text);

}  // namespace lockstep
