#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "etcd/base64.h"
#include "etcd/etcd_api.h"

namespace lockstep {

/// The part of etcd that a rendezvous uses, in memory and in virtual time: keys, revisions, leases,
/// transactions.
class FakeEtcd {
 public:
  /// What the gateway would answer; an empty string: it refuses.
  std::string answer(const EtcdRequest& request, double now) {
    expire(now);
    const auto body = nlohmann::json::parse(request.body);
    if (request.path == "/v3/kv/range") return range(body);
    if (request.path == "/v3/kv/txn") return txn(body);
    if (request.path == "/v3/lease/grant") {
      const std::int64_t id = ++last_lease_, seconds = number(body.at("TTL"));
      leases_[id] = {now + static_cast<double>(seconds), seconds};
      return nlohmann::json{{"ID", std::to_string(id)}, {"TTL", body.at("TTL")}}.dump();
    }
    const std::int64_t id = number(body.at("ID"));
    const auto lease = leases_.find(id);
    if (request.path == "/v3/lease/revoke") {
      if (lease == leases_.end()) return "";
      end(id);
      return "{}";
    }
    nlohmann::json result = {{"ID", body.at("ID")}};
    if (lease != leases_.end()) {
      lease->second.until = now + static_cast<double>(lease->second.seconds);
      result["TTL"] = std::to_string(lease->second.seconds);
    }
    return nlohmann::json{{"result", result}}.dump();
  }

  void lose_data() {
    values_.clear();
    leases_.clear();
    revision_ = 1;
  }
  void put(const std::string& key, const std::string& value) {
    values_[key] = {value, ++revision_};
  }
  void erase(const std::string& key) { values_.erase(key); }
  bool has(const std::string& key, double now) {
    expire(now);
    return values_.contains(key);
  }
  const std::string& value(const std::string& key) const { return values_.at(key).value; }
  std::size_t size() const { return values_.size(); }

 private:
  struct Value {
    std::string value;
    EtcdRevision mod_revision = 0;
    EtcdLease lease = 0;
  };
  struct Lease {
    double until = 0;
    std::int64_t seconds = 0;
  };

  static std::int64_t number(const nlohmann::json& text) {
    return std::stoll(text.get<std::string>());
  }
  static std::string bytes(const nlohmann::json& text) {
    return from_base64(text.get<std::string>()).value();
  }

  void expire(double now) {
    for (auto it = leases_.begin(); it != leases_.end();) {
      const auto [id, lease] = *it++;
      if (lease.until <= now) end(id);
    }
  }
  void end(EtcdLease id) {
    leases_.erase(id);
    if (std::erase_if(values_, [&](const auto& each) { return each.second.lease == id; }) > 0) {
      ++revision_;
    }
  }

  std::string range(const nlohmann::json& body) const {
    auto kvs = nlohmann::json::array();
    const std::string last = bytes(body.at("range_end"));
    for (auto it = values_.lower_bound(bytes(body.at("key")));
         it != values_.end() && it->first < last; ++it) {
      kvs.push_back({{"key", to_base64(it->first)},
                     {"value", to_base64(it->second.value)},
                     {"mod_revision", std::to_string(it->second.mod_revision)}});
    }
    return nlohmann::json{{"kvs", kvs}}.dump();
  }

  std::string txn(const nlohmann::json& body) {
    bool holds = true;
    for (const auto& each : body.at("compare")) {
      const auto found = values_.find(bytes(each.at("key")));
      const EtcdRevision revision = found == values_.end() ? 0 : found->second.mod_revision;
      holds = holds && revision == number(each.at("mod_revision"));
    }
    if (holds) {
      for (const auto& each : body.at("success")) {
        const auto put = each.find("request_put");
        if (put == each.end()) continue;
        const EtcdLease lease = number(put->at("lease"));
        if (lease != 0 && !leases_.contains(lease)) return "";  // "requested lease not found"
      }
      ++revision_;
      for (const auto& each : body.at("success")) apply(each);
    }
    return nlohmann::json{{"header", {{"revision", std::to_string(revision_)}}},
                          {"succeeded", holds}}
        .dump();
  }

  void apply(const nlohmann::json& change) {
    const auto& put = change.at("request_put");
    values_[bytes(put.at("key"))] = {bytes(put.at("value")), revision_, number(put.at("lease"))};
  }

  std::map<std::string, Value> values_;
  std::map<EtcdLease, Lease> leases_;
  EtcdRevision revision_ = 1;
  EtcdLease last_lease_ = 100;
};

}  // namespace lockstep
