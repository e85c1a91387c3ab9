#include "launch/connect_advice.h"

#include <cerrno>

#include "lockstep/error.h"

namespace lockstep {

std::string connect_advice(int error, const Endpoint& server) {
  switch (error) {
    case ECONNREFUSED:
      return concat("nothing listens on port ", server.port, " of ", server.host,
                    ": start lockstep run there, or correct --rdzv-endpoint");
    case ETIMEDOUT:
      return concat(server.host, " is down, or a firewall drops what is sent to its port ",
                    server.port, ": open that port there, or choose one that is open");
    case ENETUNREACH:
    case EHOSTUNREACH:
    case EACCES:
    case EPERM:
      return concat("this node has no way to ", server.host,
                    ", or may not use it: name an address of another of its networks in "
                    "--rdzv-endpoint, or correct the routes or the firewall here");
    default:
      return "";
  }
}

std::string lookup_advice(const Endpoint& server) {
  return concat("give '", server.host,
                "' an entry in DNS or in /etc/hosts of this node, or its address in "
                "--rdzv-endpoint");
}

}  // namespace lockstep
