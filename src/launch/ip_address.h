#pragma once

#include <sys/socket.h>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// An IPv4 or IPv6 address without a port. An IPv4 address in IPv6's form (::ffff:10.0.0.1), which
/// is how a socket for both families reports its peers, is kept as the IPv4 address.
class IpAddress {
 public:
  /// An address as text; std::nullopt for names and anything else. Brackets are not part of one.
  static std::optional<IpAddress> parse(const std::string& text);

  /// What a socket call returned; std::nullopt if it belongs to another family.
  static std::optional<IpAddress> from(const sockaddr* address);

  int family() const { return family_; }  // AF_INET or AF_INET6
  bool is_loopback() const;
  bool is_unspecified() const;  // 0.0.0.0 or ::
  bool is_link_local() const;   // means nothing on another machine

  std::string to_string() const;

  auto operator<=>(const IpAddress&) const = default;

 private:
  IpAddress(int family, const std::array<std::uint8_t, 16>& bytes);

  int family_;
  std::array<std::uint8_t, 16> bytes_;  // IPv4 uses the first four; the rest is zero
};

/// All addresses that a name or numeric text stands for, in the resolver's order; empty if it is
/// not known, with the resolver's words in `reason` where given. May wait for DNS, for seconds.
std::vector<IpAddress> resolve(const std::string& host, std::string* reason = nullptr);

}  // namespace lockstep
