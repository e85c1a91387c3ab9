#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "core/unique_fd.h"

namespace lockstep::rpc {

/// Where an agent can be reached. It travels as text through the directory.
struct PeerAddress {
  std::string machine;      // equal on agents that can use each other's unix sockets
  int process_id = 0;       // for people
  std::string unix_name;    // of an abstract socket
  std::string tcp_address;  // numeric; empty: it is not reached from other machines
  int tcp_port = 0;

  std::string to_text() const;
  static std::optional<PeerAddress> parse(const std::string& text);
};

/// The running kernel, its network namespace, and LOCKSTEP_MACHINE, as one word.
std::string machine_identity();

/// Both listen; descriptors never block and are closed by exec. Throw SystemError, InvalidArgument.
UniqueFd listen_unix(const std::string& name);
UniqueFd listen_tcp(const std::string& address, int* port);

/// A connection, or why there is none. These wait no longer than until `deadline`.
struct Connected {
  UniqueFd socket;
  std::string failure;
  bool refused = false;  // nobody is there any more
};
Connected connect_unix(const std::string& name, std::chrono::steady_clock::time_point deadline);
Connected connect_tcp(const std::string& address, int port,
                      std::chrono::steady_clock::time_point deadline);

/// For connections over TCP, made or accepted: small frames leave at once, and one whose other end
/// is silent for 30 s, because its machine or the way to it is lost, is ended by the kernel.
void prepare_tcp(int socket);

/// Whether the other end of a unix socket belongs to this user.
bool is_own_user(int socket);

/// The address by which this machine reaches that one, or that of the named interface; empty: none.
std::string address_towards(const std::string& host);
std::string address_of_interface(const std::string& name);

}  // namespace lockstep::rpc
