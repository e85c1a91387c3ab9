#include "launch/ip_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::size_t kIpv4Size = 4;
constexpr std::array<std::uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

IpAddress::IpAddress(int family, const std::array<std::uint8_t, 16>& bytes)
    : family_(family), bytes_(bytes) {
  if (family_ == AF_INET6 &&
      std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes_.begin())) {
    family_ = AF_INET;
    std::copy_n(bytes.begin() + kMappedPrefix.size(), kIpv4Size, bytes_.begin());
    std::fill(bytes_.begin() + kIpv4Size, bytes_.end(), std::uint8_t{0});
  }
}

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  // "fe80::1%eth0": the interface is this machine's business and not part of the address.
  const std::string address = text.substr(0, text.find('%'));
  std::array<std::uint8_t, 16> bytes = {};
  if (::inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) {
    return IpAddress(AF_INET, bytes);
  }
  if (::inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) {
    return IpAddress(AF_INET6, bytes);
  }
  return std::nullopt;
}

std::optional<IpAddress> IpAddress::from(const sockaddr* address) {
  std::array<std::uint8_t, 16> bytes = {};
  if (address == nullptr) {
    return std::nullopt;
  }
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    std::memcpy(bytes.data(), &v4.sin_addr, kIpv4Size);
    return IpAddress(AF_INET, bytes);
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof v6);
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
    return IpAddress(AF_INET6, bytes);
  }
  return std::nullopt;
}

bool IpAddress::is_loopback() const {
  if (family_ == AF_INET) {
    return bytes_[0] == 127;
  }
  constexpr std::array<std::uint8_t, 16> kLoopback = {0, 0, 0, 0, 0, 0, 0, 0,
                                                      0, 0, 0, 0, 0, 0, 0, 1};
  return bytes_ == kLoopback;
}

bool IpAddress::is_unspecified() const {
  return bytes_ == std::array<std::uint8_t, 16>{};
}

bool IpAddress::is_link_local() const {
  return family_ == AF_INET ? bytes_[0] == 169 && bytes_[1] == 254
                            : bytes_[0] == 0xfe && (bytes_[1] & 0xc0) == 0x80;
}

std::string IpAddress::to_string() const {
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(family_, bytes_.data(), text, sizeof text);
  return text;
}

std::vector<IpAddress> resolve(const std::string& host, std::string* reason) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;  // otherwise every address comes once for each kind of socket
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  std::vector<IpAddress> addresses;
  if (code != 0) {
    if (reason != nullptr) {
      *reason = ::gai_strerror(code);
    }
    return addresses;
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const auto address = IpAddress::from(each->ai_addr);
    if (address && std::find(addresses.begin(), addresses.end(), *address) == addresses.end()) {
      addresses.push_back(*address);
    }
  }
  ::freeaddrinfo(found);
  return addresses;
}

}  // namespace lockstep
