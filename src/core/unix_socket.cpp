#include "core/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// Where a path is too long for the kernel, the same place by way of its opened folder.
class ShortPath {
 public:
  explicit ShortPath(const std::string& path) {
    std::string name = path;
    if (path.size() >= sizeof(address_.sun_path)) {
      const std::size_t slash = path.rfind('/');
      const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
      folder_ = UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!folder_) throw_errno(concat("cannot open ", folder));
      name = concat("/proc/self/fd/", folder_.get(), "/", path.substr(slash + 1));
    }
    if (name.size() >= sizeof(address_.sun_path)) {
      throw SystemError(concat("the name of the socket ", path, " is too long"));
    }
    address_.sun_family = AF_UNIX;
    std::memcpy(address_.sun_path, name.c_str(), name.size() + 1);
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return sizeof(address_); }

 private:
  sockaddr_un address_{};
  UniqueFd folder_;
};

UniqueFd make_socket() {
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw_errno("socket");
  return socket;
}

}  // namespace

UniqueFd listen_at_path(const std::string& path) {
  const ShortPath address(path);
  UniqueFd socket = make_socket();
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) ::unlink(path.c_str());
  if (::bind(socket.get(), address.get(), address.size()) != 0) {
    throw_errno(concat("cannot make the socket ", path));
  }
  // Nobody can connect before listen().
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    throw_errno(concat("cannot listen at ", path));
  }
  return socket;
}

UniqueFd connect_to_path(const std::string& path) {
  const ShortPath address(path);
  UniqueFd socket = make_socket();
  // Done at once: the kernel accepts in the listener's name, or refuses.
  if (::connect(socket.get(), address.get(), address.size()) != 0) {
    throw_errno(concat("cannot connect to ", path));
  }
  return socket;
}

}  // namespace lockstep
