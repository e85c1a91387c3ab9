#include "launch/etcd_access.h"

#include "launch/endpoint.h"
#include "launch/ip_address.h"
#include "launch/secret.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// By either of torchrun's names.
std::string etcd_value(const RunOptions& options, const char* name, const char* other) {
  for (const char* each : {name, other}) {
    const auto found = options.rdzv_conf.find(each);
    if (found != options.rdzv_conf.end()) return found->second;
  }
  return "";
}

bool stays_on_this_machine(const Endpoint& server) {
  const auto address = IpAddress::parse(server.host);
  return server.host == "localhost" || (address && address->is_loopback());
}

void read_login(EtcdAccess& access, const RunOptions& options, const Environment& environment) {
  access.user = etcd_value(options, "user", "username");
  const std::string file = etcd_value(options, "password_file", "password_file");
  const auto variable = environment.get("LOCKSTEP_ETCD_PASSWORD");
  if (access.user.empty()) {
    if (!file.empty()) {
      throw InvalidArgument("--rdzv-conf has password_file, but no user whose password that is");
    }
    return;
  }
  if (file.empty() && !variable) {
    throw InvalidArgument(concat("--rdzv-conf has the user '", access.user,
                                 "' of etcd, but no password: give password_file=FILE there, or "
                                 "LOCKSTEP_ETCD_PASSWORD in the environment"));
  }
  access.password = file.empty() ? *variable : read_private_file(file);
  if (access.tls) return;
  for (const Endpoint& server : parse_etcd_endpoints(options.rdzv_endpoint)) {
    if (stays_on_this_machine(server)) continue;
    throw InvalidArgument(concat("etcd's user '", access.user, "' is given for ",
                                 server.to_string(),
                                 ", but over http anyone on the way can read the password: say "
                                 "protocol=https in --rdzv-conf"));
  }
}

}  // namespace

EtcdAccess etcd_access(const RunOptions& options, const Environment& environment) {
  EtcdAccess access{.tls = etcd_value(options, "protocol", "protocol") == "https"};
  access.trust = {.authorities = etcd_value(options, "cacert", "ca_cert"),
                  .certificate = etcd_value(options, "cert", "ssl_cert"),
                  .key = etcd_value(options, "key", "ssl_cert_key")};
  const TlsTrust::Options& trust = access.trust;
  const bool has_files =
      !trust.authorities.empty() || !trust.certificate.empty() || !trust.key.empty();
  if (has_files && !access.tls) {
    throw InvalidArgument(
        "--rdzv-conf names certificates for etcd, but not protocol=https; without it they are of "
        "no use");
  }
  if (trust.certificate.empty() != trust.key.empty()) {
    throw InvalidArgument(
        "--rdzv-conf has one of cert and key, by which etcd knows this node; give both");
  }
  read_login(access, options, environment);
  return access;
}

}  // namespace lockstep
