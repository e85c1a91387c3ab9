#include "launch/endpoint.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "core/parse_integer.h"
#include "launch/ip_address.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kLargestPort = 65535;

std::string trimmed(const std::string& text) {
  constexpr std::string_view kBlanks = " \t\n\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  return begin == std::string::npos
             ? std::string()
             : text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

[[noreturn]] void refuse(const std::string& option, const std::string& text,
                         const std::string& rule) {
  throw InvalidArgument(concat(option, " is '", text, "'; ", rule));
}

void check_name(const std::string& host, const std::string& option, const std::string& text) {
  const auto belongs = [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '.' || letter == '-' || letter == '_';
  };
  if (host.empty()) {
    refuse(option, text, "the host before the port is missing");
  }
  if (!std::all_of(host.begin(), host.end(), belongs)) {
    refuse(option, text,
           concat("'", host,
                  "' is neither a host's name nor an address; write HOST:PORT, or "
                  "[ADDRESS]:PORT for IPv6"));
  }
}

// The address inside brackets.
void check_ipv6(const std::string& host, const std::string& option, const std::string& text) {
  const auto address = IpAddress::parse(host);
  if (!address || host.find(':') == std::string::npos) {
    refuse(option, text, concat("'", host, "' in the brackets is no IPv6 address"));
  }
}

int parse_port(const std::string& port, const std::string& option, const std::string& text) {
  const auto number = parse_integer<int>(port);
  if (!number || *number < 0 || *number > kLargestPort) {
    refuse(option, text, concat("its port '", port, "' must be a number from 0 to ", kLargestPort));
  }
  return *number;
}

Endpoint parse_bracketed(const std::string& address, int default_port, const std::string& option) {
  const std::size_t close = address.find(']');
  if (close == std::string::npos) {
    refuse(option, address, "the bracket is not closed; write [ADDRESS]:PORT");
  }
  Endpoint endpoint{.host = address.substr(1, close - 1), .port = default_port};
  check_ipv6(endpoint.host, option, address);
  const std::string rest = address.substr(close + 1);
  if (!rest.empty()) {
    if (rest[0] != ':') {
      refuse(option, address, "after the bracket only ':' and a port may follow");
    }
    endpoint.port = parse_port(rest.substr(1), option, address);
  }
  return endpoint;
}

}  // namespace

std::string Endpoint::to_string() const {
  return host.find(':') == std::string::npos ? concat(host, ":", port)
                                             : concat("[", host, "]:", port);
}

Endpoint parse_endpoint(const std::string& text, int default_port, const std::string& option) {
  const std::string address = trimmed(text);
  if (address.empty()) {
    return {.host = "localhost", .port = default_port};
  }
  if (address[0] == '[') {
    return parse_bracketed(address, default_port, option);
  }
  const std::size_t colon = address.find(':');
  if (colon != address.rfind(':')) {
    refuse(option, address,
           "with several colons it cannot be told where the port begins; write [ADDRESS]:PORT");
  }
  Endpoint endpoint{.host = address.substr(0, colon), .port = default_port};
  check_name(endpoint.host, option, address);
  if (colon != std::string::npos) {
    endpoint.port = parse_port(address.substr(colon + 1), option, address);
  }
  return endpoint;
}

std::string parse_host(const std::string& text, const std::string& option) {
  std::string host = trimmed(text);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    check_ipv6(host, option, text);
    return host;
  }
  if (IpAddress::parse(host)) {
    return host;
  }
  if (host.empty()) {
    refuse(option, text, "it must be a host's name or an address");
  }
  if (host.find(':') != std::string::npos) {
    refuse(option, text, "it must be a host without a port; the port has an option of its own");
  }
  check_name(host, option, text);
  return host;
}

std::vector<Endpoint> parse_etcd_endpoints(const std::string& text, const std::string& option) {
  constexpr int kEtcdPort = 2379;
  std::vector<Endpoint> servers;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    servers.push_back(parse_endpoint(text.substr(begin, end - begin), kEtcdPort, option));
    if (servers.back().port == 0) {
      throw InvalidArgument(concat(option, " is '", text, "', where a port is 0; etcd's is 2379"));
    }
    begin = end + 1;
  }
  return servers;
}

}  // namespace lockstep
