#include "launch/leader_keys.h"

#include "core/hmac.h"
#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxValue = 4096;

// The key is signed as well: a value cannot be moved to another one, or to another job.
std::string signature(const LeaderKeys& keys, const std::string& key, std::string_view text) {
  if (keys.secret.empty()) return "unsigned";
  return to_hex(hmac_sha256(keys.secret, concat("lockstep etcd ", key, "\n", text)));
}

}  // namespace

std::string LeaderKeys::seal(const std::string& key, const std::string& text) const {
  return concat(signature(*this, key, text), "\n", text);
}

std::optional<std::string> LeaderKeys::open(const std::string& key, std::string_view value) const {
  const std::size_t end = value.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view text = value.substr(end + 1);
  if (!equal_in_constant_time(value.substr(0, end), signature(*this, key, text))) {
    return std::nullopt;
  }
  return std::string(text);
}

std::string to_json(const Leader& leader) {
  return dump_json({{"term", leader.term},
                    {"id", leader.id},
                    {"host", leader.host},
                    {"address", leader.address},
                    {"port", leader.port}});
}

std::optional<Leader> leader_from_json(std::string_view text) {
  const auto object = parse_json(text);
  if (!object) return std::nullopt;
  const auto term = integer_field(*object, "term"), port = integer_field(*object, "port");
  const auto id = string_field(*object, "id", kMaxValue);
  const auto host = string_field(*object, "host", kMaxValue);
  const auto address = string_field(*object, "address", kMaxValue);
  if (!term || !port || !id || !host || !address) return std::nullopt;
  if (*term < 1 || *port < 1 || *port > 65535 || id->empty()) return std::nullopt;
  return Leader{.term = static_cast<std::uint64_t>(*term),
                .id = *id,
                .host = *host,
                .address = *address,
                .port = static_cast<int>(*port)};
}

}  // namespace lockstep
