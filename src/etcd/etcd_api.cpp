#include "etcd/etcd_api.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/parse_integer.h"
#include "etcd/base64.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// A range that ends before this has all keys with the prefix.
std::string end_of_prefix(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 255) prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

Json compares(const std::vector<EtcdCondition>& conditions) {
  Json list = Json::array();
  for (const EtcdCondition& condition : conditions) {
    list.push_back({{"key", to_base64(condition.key)},
                    {"target", "MOD"},
                    {"result", "EQUAL"},
                    {"mod_revision", std::to_string(condition.mod_revision)}});
  }
  return list;
}

Json parse(std::string_view body) {
  Json value = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) throw InvalidArgument("etcd's answer is no JSON object");
  return value;
}

// 64-bit numbers come as strings, and 0 not at all.
std::int64_t number(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  const auto value = found->is_string()
                         ? parse_integer<std::int64_t>(found->get_ref<const std::string&>())
                     : found->is_number_integer() ? std::optional(found->get<std::int64_t>())
                                                  : std::nullopt;
  if (!value) throw InvalidArgument(concat("etcd's answer has no number in '", name, "'"));
  return *value;
}

std::string bytes(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return "";
  const auto value =
      found->is_string() ? from_base64(found->get_ref<const std::string&>()) : std::nullopt;
  if (!value) throw InvalidArgument(concat("etcd's answer has no base64 in '", name, "'"));
  return *value;
}

}  // namespace

EtcdRequest range_of_prefix(const std::string& prefix) {
  return {"/v3/kv/range",
          dump({{"key", to_base64(prefix)}, {"range_end", to_base64(end_of_prefix(prefix))}})};
}

EtcdRequest grant_lease(std::int64_t seconds) {
  return {"/v3/lease/grant", dump({{"TTL", std::to_string(seconds)}})};
}

EtcdRequest keep_lease_alive(EtcdLease lease) {
  return {"/v3/lease/keepalive", dump({{"ID", std::to_string(lease)}})};
}

EtcdRequest revoke_lease(EtcdLease lease) {
  return {"/v3/lease/revoke", dump({{"ID", std::to_string(lease)}})};
}

EtcdRequest put_if(const std::vector<EtcdCondition>& conditions, const std::vector<EtcdPut>& puts) {
  Json writes = Json::array();
  for (const EtcdPut& put : puts) {
    writes.push_back({{"request_put",
                       {{"key", to_base64(put.key)},
                        {"value", to_base64(put.value)},
                        {"lease", std::to_string(put.lease)}}}});
  }
  return {"/v3/kv/txn", dump({{"compare", compares(conditions)}, {"success", writes}})};
}

EtcdRequest log_in(const std::string& user, const std::string& password) {
  return {"/v3/auth/authenticate", dump({{"name", user}, {"password", password}})};
}

std::vector<EtcdValue> read_range(std::string_view body) {
  const Json reply = parse(body);
  std::vector<EtcdValue> values;
  const auto list = reply.find("kvs");
  if (list == reply.end()) return values;
  if (!list->is_array()) throw InvalidArgument("etcd's answer has no list in 'kvs'");
  for (const Json& each : *list) {
    if (!each.is_object()) throw InvalidArgument("etcd's answer has no value in 'kvs'");
    values.push_back({bytes(each, "key"), bytes(each, "value"), number(each, "mod_revision")});
  }
  return values;
}

EtcdLease read_granted_lease(std::string_view body) {
  const EtcdLease lease = number(parse(body), "ID");
  if (lease == 0) throw InvalidArgument("etcd's answer grants no lease");
  return lease;
}

std::int64_t read_kept_lease(std::string_view body) {
  const Json reply = parse(body);
  const auto result = reply.find("result");
  if (result == reply.end() || !result->is_object()) {
    throw InvalidArgument("etcd's answer says nothing about the lease");
  }
  return number(*result, "TTL");
}

EtcdTxnReply read_txn(std::string_view body) {
  const Json reply = parse(body);
  const auto header = reply.find("header");
  if (header == reply.end() || !header->is_object()) {
    throw InvalidArgument("etcd's answer has no header");
  }
  const auto succeeded = reply.find("succeeded");
  return {.succeeded = succeeded != reply.end() && *succeeded == true,
          .revision = number(*header, "revision")};
}

std::string read_token(std::string_view body) {
  const Json reply = parse(body);
  const auto token = reply.find("token");
  if (token == reply.end() || !token->is_string()) throw InvalidArgument("etcd gives no token");
  const std::string text = token->get<std::string>();
  // It becomes a line of HTTP.
  const bool is_plain =
      std::ranges::all_of(text, [](char each) { return each > ' ' && each <= '~'; });
  if (text.empty() || !is_plain) throw InvalidArgument("etcd's token is no line of text");
  return text;
}

bool asks_for_login(int status, std::string_view body) {
  return status == 401 || body.find("invalid auth token") != std::string_view::npos ||
         body.find("auth store is old") != std::string_view::npos;
}

std::string read_error(int status, std::string_view body) {
  const Json reply = Json::parse(body.begin(), body.end(), nullptr, /*allow_exceptions=*/false);
  for (const char* name : {"message", "error"}) {
    if (!reply.is_object() || !reply.contains(name) || !reply[name].is_string()) continue;
    return concat("it answers ", status, ": ",
                  reply[name].get_ref<const std::string&>().substr(0, 200));
  }
  return concat("it answers ", status);
}

}  // namespace lockstep
