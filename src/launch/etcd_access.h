#pragma once

#include <string>

#include "core/tls_stream.h"
#include "launch/options.h"
#include "lockstep/environment.h"

namespace lockstep {

/// How etcd is talked to: what proves that it is the right one, and what proves who asks.
struct EtcdAccess {
  bool tls = false;
  TlsTrust::Options trust = {};
  std::string user = {};  // empty: nobody logs in
  std::string password = {};
};

/// What --rdzv-conf says about it: protocol, cacert, cert, key (or their names of etcd-v2: ca_cert,
/// ssl_cert, ssl_cert_key), user and password_file; the password also by LOCKSTEP_ETCD_PASSWORD.
/// Throws InvalidArgument for what contradicts itself, and where a password would cross a network
/// without TLS.
EtcdAccess etcd_access(const RunOptions& options, const Environment& environment);

}  // namespace lockstep
