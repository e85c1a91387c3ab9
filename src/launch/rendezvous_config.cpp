#include "launch/rendezvous_config.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

struct TimeKey {
  std::string_view name;
  milliseconds RendezvousConfig::*field;
};
// "timeout" is what torchrun's static backend reads, and what users of c10d write in the belief
// that it is read there too. Here it is the join time-out under both.
constexpr std::array<TimeKey, 7> kTimes{{
    {"join_timeout", &RendezvousConfig::join_timeout},
    {"timeout", &RendezvousConfig::join_timeout},
    {"last_call_timeout", &RendezvousConfig::last_call_timeout},
    {"close_timeout", &RendezvousConfig::close_timeout},
    {"heartbeat_timeout", &RendezvousConfig::heartbeat_timeout},
    {"keep_alive_interval", &RendezvousConfig::keep_alive_interval},
    {"read_timeout", &RendezvousConfig::read_timeout},
}};
constexpr std::array<std::string_view, 11> kEtcdKeys{
    "protocol", "etcd_prefix",  "cacert", "ca_cert",  "cert",         "ssl_cert",
    "key",      "ssl_cert_key", "user",   "username", "password_file"};

std::string known_keys() {
  std::string text;
  for (const TimeKey& key : kTimes) {
    text += concat(key.name, ", ");
  }
  return text + "keep_alive_max_attempt, is_host, store_type";
}

void check_word(const OptionValue& value) {
  constexpr std::array<std::string_view, 10> kWords{"1", "true",  "t", "yes", "y",
                                                    "0", "false", "f", "no",  "n"};
  std::string word = value.text;
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  if (std::ranges::find(kWords, word) == kWords.end()) {
    reject(value, "it must be one of 1, true, yes, 0, false, no");
  }
}

[[noreturn]] void reject_unknown(const std::string& key, std::string_view backend,
                                 std::string_view source) {
  const bool is_of_etcd = std::ranges::find(kEtcdKeys, key) != kEtcdKeys.end();
  if (key == "password" && backend == "etcd") {
    throw InvalidArgument(concat(source,
                                 " has the key 'password', which every process list would "
                                 "show: give password_file=FILE, or LOCKSTEP_ETCD_PASSWORD in the "
                                 "environment"));
  }
  if (is_of_etcd) {
    throw InvalidArgument(concat(source, " has the key '", key,
                                 "', which belongs to etcd; the backend is ", backend));
  }
  throw InvalidArgument(concat(source, " has the key '", key, "', which the backend ", backend,
                               " does not have; it has ", known_keys()));
}

void apply(RendezvousConfig& config, const std::string& key, const OptionValue& value,
           std::string_view backend, std::string_view source) {
  const auto time =
      std::ranges::find_if(kTimes, [&](const TimeKey& known) { return known.name == key; });
  if (time != kTimes.end()) {
    const auto duration = std::chrono::ceil<milliseconds>(parse_positive_seconds(value));
    config.*(time->field) = duration;
  } else if (key == "keep_alive_max_attempt") {
    config.keep_alive_max_attempt = parse_int_at_least(value, 1);
  } else if (backend == "etcd" && key == "protocol") {
    if (value.text != "http" && value.text != "https") reject(value, "it must be http or https");
  } else if (backend == "etcd" && key == "etcd_prefix") {
    if (!value.text.starts_with('/') || value.text.ends_with('/')) {
      reject(value, "it must begin with a slash, and not end with one");
    }
    config.etcd_prefix = value.text;
  } else if (backend == "etcd" && std::ranges::find(kEtcdKeys, key) != kEtcdKeys.end()) {
    // etcd_access() reads the rest of them.
  } else if (backend == "etcd" && (key == "is_host" || key == "store_type")) {
    reject(value, "under etcd no node is the host from the start; leave it out");
  } else if (key == "is_host") {
    check_word(value);  // choose_host() reads it
  } else if (key == "store_type") {
    if (value.text != "tcp") {
      reject(value, "only tcp is supported");
    }
  } else if (key == "rank") {
    reject(value, "give the rank of this node with --node-rank");
  } else {
    reject_unknown(key, backend, source);
  }
}

}  // namespace

std::map<std::string, std::string> split_rendezvous_conf(const OptionValue& value) {
  std::map<std::string, std::string> pairs;
  if (trim(value.text).empty()) {
    return pairs;
  }
  for (const std::string_view entry : split(value.text, ',')) {
    const std::size_t equals = entry.find('=');
    const std::string_view key = trim(entry.substr(0, equals));
    const std::string_view text =
        equals == std::string_view::npos ? std::string_view() : trim(entry.substr(equals + 1));
    if (key.empty() || text.empty()) {
      reject(value, "it must be KEY=VALUE,KEY=VALUE,... with no empty key or value");
    }
    pairs[std::string(key)] = text;
  }
  return pairs;
}

RendezvousConfig read_rendezvous_conf(const std::map<std::string, std::string>& pairs,
                                      std::string_view backend, std::string_view source) {
  RendezvousConfig config;
  if (backend == "static") {
    config.join_timeout = std::chrono::seconds(900);  // torchrun's two backends differ in this
  }
  if (pairs.contains("timeout") && pairs.contains("join_timeout")) {
    throw InvalidArgument(
        concat(source, " has both timeout and join_timeout, which mean the same; give one"));
  }
  for (const auto& [key, text] : pairs) {
    apply(config, key, {concat(source, " ", key), text}, backend, source);
  }
  return config;
}

}  // namespace lockstep
