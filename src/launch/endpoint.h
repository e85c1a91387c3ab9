#pragma once

#include <string>
#include <vector>

namespace lockstep {

/// Where something listens.
struct Endpoint {
  std::string host;  // a name or an address, without brackets
  int port = 0;      // 0: any free port

  /// "host:port", with brackets around an IPv6 address.
  std::string to_string() const;

  bool operator==(const Endpoint&) const = default;
};

/// Reads "host:port", "host", "[v6]:port" or "[v6]". Empty text is localhost with the default port.
///
/// Throws InvalidArgument naming `option` (such as "--rdzv-endpoint") and what is wrong. An IPv6
/// address needs brackets: in "fe80::1:29400" nobody can tell where the port begins.
Endpoint parse_endpoint(const std::string& text, int default_port,
                        const std::string& option = "--rdzv-endpoint");

/// "host1:2379,host2": etcd's servers; the port is 2379 where none is given. Throws
/// InvalidArgument as parse_endpoint() does.
std::vector<Endpoint> parse_etcd_endpoints(const std::string& text,
                                           const std::string& option = "--rdzv-endpoint");

/// A host alone, as --master-addr gives it: a name, an IPv4 address, or an IPv6 address with or
/// without brackets, which are taken away. Throws InvalidArgument as parse_endpoint() does.
std::string parse_host(const std::string& text, const std::string& option);

}  // namespace lockstep
