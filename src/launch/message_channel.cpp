#include "launch/message_channel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// What is longer travels in a memory file, whose descriptor is sent instead: a packet larger than
// the socket's buffer could never be sent.
constexpr std::size_t kMostInline = 16 << 10;
constexpr char kInline = 'i';
constexpr char kInFile = 'f';

UniqueFd above_standard(UniqueFd fd) {
  if (fd.get() > STDERR_FILENO) {
    return fd;
  }
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!moved) {
    throw_errno("cannot duplicate a socket");
  }
  return moved;
}

UniqueFd memory_file(const std::string& bytes) {
  UniqueFd file(::memfd_create("lockstep-message", MFD_CLOEXEC));
  if (!file) {
    throw_errno("cannot make a memory file for a message");
  }
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) {
      throw_errno(concat("cannot write a message of ", bytes.size(), " bytes to memory"));
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  }
  return file;
}

std::string read_memory_file(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    throw_errno("cannot look at a message's memory file");
  }
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      throw_errno("cannot read a message's memory file");
    }
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

// Room for the descriptors of one message, aligned as the kernel wants it.
union Control {
  cmsghdr alignment;
  char bytes[CMSG_SPACE((MessageChannel::kMostDescriptors + 1) * sizeof(int))];
};

void attach(msghdr& header, Control& control, const std::vector<int>& fds) {
  if (fds.empty()) {
    return;
  }
  const std::size_t size = fds.size() * sizeof(int);
  header.msg_control = control.bytes;
  header.msg_controllen = CMSG_SPACE(size);
  cmsghdr* entry = CMSG_FIRSTHDR(&header);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(entry), fds.data(), size);
}

std::vector<UniqueFd> detach(msghdr& header) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + index * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

std::pair<MessageChannel, MessageChannel> MessageChannel::pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    throw_errno("cannot make a pair of sockets");
  }
  UniqueFd first(ends[0]);
  UniqueFd second(ends[1]);
  return {MessageChannel(above_standard(std::move(first))),
          MessageChannel(above_standard(std::move(second)))};
}

ChannelResult MessageChannel::send(const std::string& bytes, std::span<const int> fds) {
  LOCKSTEP_CHECK(fds.size() <= kMostDescriptors, fds.size(), " descriptors");
  std::vector<int> attached(fds.begin(), fds.end());
  UniqueFd file;
  char kind = kInline;
  if (bytes.size() > kMostInline) {
    file = memory_file(bytes);
    attached.push_back(file.get());
    kind = kInFile;
  }
  // sendmsg does not write to it, although its type does not say so.
  iovec parts[2] = {{&kind, 1}, {const_cast<char*>(bytes.data()), bytes.size()}};
  Control control;
  msghdr header = {};
  header.msg_iov = parts;
  header.msg_iovlen = file ? 1 : 2;
  attach(header, control, attached);
  while (::sendmsg(socket_.get(), &header, MSG_NOSIGNAL) < 0) {
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
      case ETOOMANYREFS:  // more descriptors under way than this process may have open
        return ChannelResult::would_block;
      case EPIPE:
      case ECONNRESET:
        return ChannelResult::closed;
      default:
        throw_errno("cannot send a message to a process of this launcher");
    }
  }
  return ChannelResult::done;
}

ChannelResult MessageChannel::receive(ChannelMessage& message) {
  char kind = 0;
  message.bytes.resize(kMostInline);
  iovec parts[2] = {{&kind, 1}, {message.bytes.data(), message.bytes.size()}};
  Control control;
  msghdr header = {};
  header.msg_iov = parts;
  header.msg_iovlen = 2;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof control.bytes;
  ssize_t count = 0;
  do {
    count = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count == 0 || (count < 0 && errno == ECONNRESET)) {
    return ChannelResult::closed;
  }
  if (count < 0 && errno == EAGAIN) {
    return ChannelResult::would_block;
  }
  if (count < 0) {
    throw_errno("cannot receive a message from a process of this launcher");
  }
  message.fds = detach(header);
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    throw SystemError(
        "a message lost its descriptors on the way: too many files are open (ulimit -n)");
  }
  message.bytes.resize(static_cast<std::size_t>(count) - 1);
  if (kind == kInFile) {
    LOCKSTEP_CHECK(!message.fds.empty(), "a message without its memory file");
    message.bytes = read_memory_file(message.fds.back().get());
    message.fds.pop_back();
  }
  return ChannelResult::done;
}

}  // namespace lockstep
