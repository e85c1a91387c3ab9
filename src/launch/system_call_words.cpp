#include "launch/system_call_words.h"

#include <sys/syscall.h>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

struct Call {
  long number;
  std::string_view words;
  bool on_descriptor;  // its first argument is one
};

// Those in which programs wait. Some exist on one processor and not on another.
constexpr Call kCalls[] = {
    {SYS_futex, "futex (a lock or a condition)", false},
    {SYS_read, "read", true},
    {SYS_pread64, "pread", true},
    {SYS_readv, "readv", true},
    {SYS_write, "write", true},
    {SYS_pwrite64, "pwrite", true},
    {SYS_writev, "writev", true},
    {SYS_recvfrom, "recv", true},
    {SYS_recvmsg, "recvmsg", true},
    {SYS_sendto, "send", true},
    {SYS_sendmsg, "sendmsg", true},
    {SYS_accept, "accept", true},
    {SYS_accept4, "accept", true},
    {SYS_connect, "connect", true},
    {SYS_ioctl, "ioctl", true},
    {SYS_fsync, "fsync", true},
    {SYS_fdatasync, "fdatasync", true},
    {SYS_flock, "flock", true},
    {SYS_fcntl, "fcntl", true},
    {SYS_fallocate, "fallocate", true},
    {SYS_openat, "open", false},
    {SYS_ppoll, "poll", false},
    {SYS_pselect6, "select", false},
    {SYS_epoll_pwait, "epoll_wait", false},
    {SYS_nanosleep, "sleep", false},
    {SYS_clock_nanosleep, "sleep", false},
    {SYS_wait4, "wait for a child", false},
    {SYS_waitid, "wait for a child", false},
    {SYS_rt_sigtimedwait, "wait for a signal", false},
    {SYS_rt_sigsuspend, "wait for a signal", false},
    {SYS_sched_yield, "sched_yield", false},
    {SYS_munmap, "munmap", false},
    {SYS_mmap, "mmap", false},
    {SYS_madvise, "madvise", false},
    {SYS_execve, "exec", false},
    {SYS_clone, "clone (a new process or thread)", false},
#ifdef SYS_clone3
    {SYS_clone3, "clone (a new process or thread)", false},
#endif
#ifdef SYS_io_uring_enter
    {SYS_io_uring_enter, "io_uring_enter", false},
#endif
#ifdef SYS_epoll_pwait2
    {SYS_epoll_pwait2, "epoll_wait", false},
#endif
#ifdef SYS_poll
    {SYS_poll, "poll", false},
#endif
#ifdef SYS_select
    {SYS_select, "select", false},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait", false},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause", false},
#endif
#ifdef SYS_open
    {SYS_open, "open", false},
#endif
#ifdef SYS_vfork
    {SYS_vfork, "vfork (until its child runs a program)", false},
#endif
};

// "0x5" as the kernel writes arguments.
std::uint64_t parse_hex(std::string_view text) {
  std::uint64_t value = 0;
  if (text.starts_with("0x")) {
    std::from_chars(text.data() + 2, text.data() + text.size(), value, 16);
  }
  return value;
}

// What a descriptor leads to. The number in "socket:[123]" says nothing to a reader, and differs
// between ranks that wait for the same.
std::string target_in_words(const std::string& target) {
  if (target.starts_with("socket:")) {
    return "a socket";
  }
  return target.starts_with("pipe:") ? "a pipe" : target;
}

}  // namespace

std::string system_call_in_words(const std::string& line, const std::string& descriptors) {
  std::istringstream words(line);
  std::string first;
  std::string argument;
  words >> first >> argument;
  // "running", or "-1 ..." for a thread that waits outside of any call.
  const auto number = parse_integer<long>(first);
  if (!number || *number < 0) {
    return "";
  }
  const auto call = std::find_if(std::begin(kCalls), std::end(kCalls),
                                 [&](const Call& each) { return each.number == *number; });
  if (call == std::end(kCalls)) {
    return concat("system call ", *number);
  }
  if (!call->on_descriptor) {
    return std::string(call->words);
  }
  std::error_code error;
  const auto target = std::filesystem::read_symlink(
      concat(descriptors, "/", static_cast<std::uint32_t>(parse_hex(argument))), error);
  return error ? std::string(call->words)
               : concat(call->words, " of ", target_in_words(target.string()));
}

}  // namespace lockstep
