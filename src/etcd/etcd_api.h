#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The few calls of etcd's version 3 that a rendezvous needs, as its JSON gateway takes and answers
/// them over HTTP.

/// What is sent: a POST of this body to this path.
struct EtcdRequest {
  std::string path;
  std::string body;
};

using EtcdRevision = std::int64_t;
using EtcdLease = std::int64_t;

struct EtcdValue {
  std::string key;
  std::string value;
  EtcdRevision mod_revision = 0;  // of its last change

  bool operator==(const EtcdValue&) const = default;
};

/// Holds if the key was last changed at this revision; 0: there is no such key.
struct EtcdCondition {
  std::string key;
  EtcdRevision mod_revision = 0;
};

/// What is written where all conditions hold, all at once.
struct EtcdPut {
  std::string key;
  std::string value;
  EtcdLease lease = 0;  // the key goes with it; 0: it stays
};

EtcdRequest range_of_prefix(const std::string& prefix);
EtcdRequest grant_lease(std::int64_t seconds);
EtcdRequest keep_lease_alive(EtcdLease lease);
EtcdRequest revoke_lease(EtcdLease lease);
EtcdRequest put_if(const std::vector<EtcdCondition>& conditions, const std::vector<EtcdPut>& puts);

/// Asks for a token, with which later requests show whose they are.
EtcdRequest log_in(const std::string& user, const std::string& password);

/// Whether the conditions held, and the revision of the change, which is that of all its keys.
struct EtcdTxnReply {
  bool succeeded = false;
  EtcdRevision revision = 0;
};

// What came back. All throw InvalidArgument for what etcd would not say.

std::vector<EtcdValue> read_range(std::string_view body);
EtcdLease read_granted_lease(std::string_view body);
/// Seconds that the lease has from now; 0: it is gone.
std::int64_t read_kept_lease(std::string_view body);
EtcdTxnReply read_txn(std::string_view body);
std::string read_token(std::string_view body);

/// Whether etcd did not serve a request because its token is none any more.
bool asks_for_login(int status, std::string_view body);

/// What etcd says about a request that it did not serve, for people.
std::string read_error(int status, std::string_view body);

}  // namespace lockstep
