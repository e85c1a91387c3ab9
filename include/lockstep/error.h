#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Joins its arguments as operator<< prints them. Messages are built with it.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return std::move(text).str();
}

/// Messages of other libraries go on with stack traces after the first line.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// Root of everything this library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller gave a value that cannot work: an option, a flag, an environment variable. The
/// message names it, its value and the rule. A program exits with code 2.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// An operation did not finish in its time. Where it is known who was missing, `missing()` says so.
class Timeout : public Error {
 public:
  explicit Timeout(const std::string& message, std::vector<int> missing = {})
      : Error(message), missing_(std::move(missing)) {}

  /// Ranks that had not arrived, in ascending order; empty where that is not known.
  const std::vector<int>& missing() const { return missing_; }

 private:
  std::vector<int> missing_;
};

/// The connection to another rank broke while an operation needed it. The group that reports it can
/// no longer be used; the process can destroy its World and form a new one.
class PeerLost : public Error {
 public:
  struct Details {
    int rank = -1;           // who reports
    std::vector<int> peers;  // who is known to be dead; empty where that cannot be told
    std::string operation;   // what was under way, in torch.distributed's names
  };

  PeerLost(const std::string& message, Details details)
      : Error(message), details_(std::move(details)) {}

  int rank() const { return details_.rank; }
  const std::vector<int>& peers() const { return details_.peers; }
  const std::string& operation() const { return details_.operation; }

 private:
  Details details_;
};

/// This process called abort() on the group while the operation was in flight, or uses a group
/// after abort() or destroy().
class Aborted : public Error {
 public:
  using Error::Error;
};

/// Another rank failed in a section that all ranks pass together; the message is that rank's.
class RemoteError : public Error {
 public:
  RemoteError(int rank, const std::string& message) : Error(message), rank_(rank) {}
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// The program was asked to stop, has saved what it did, and is to be started again. A program
/// exits with code 75, which launchers take for "resume me".
class Preempted : public Error {
 public:
  static constexpr int kExitCode = 75;
  using Error::Error;
};

/// The operating system refused something (a file, a socket, a process).
class SystemError : public Error {
 public:
  using Error::Error;
};

/// Throws SystemError: "<what>: <text of errno>".
[[noreturn]] void throw_errno(const std::string& what);

namespace detail {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& values);
}  // namespace detail

}  // namespace lockstep

/// An assertion about our own code that stays on in release builds. The arguments after the
/// condition are printed; the process aborts, because going on would train on wrong numbers.
#define LOCKSTEP_CHECK(condition, ...)                                   \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::lockstep::detail::check_failed(#condition, __FILE__, __LINE__,   \
                                       ::lockstep::concat(__VA_ARGS__)); \
    }                                                                    \
  } while (false)
