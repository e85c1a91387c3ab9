#include "cluster/slurm_address.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>

#include "core/exec_process.h"
#include "core/unique_fd.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kPatience{10};

// All that a program prints; what it has printed until then if it takes too long.
std::string output_of(const std::vector<std::string>& argv) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot make a pipe");
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const Environment environment = Environment::of_process();
  const pid_t pid =
      exec_process({.argv = argv,
                    .environment = {environment.variables().begin(), environment.variables().end()},
                    .working_directory = "",
                    .stdin_fd = null.get(),
                    .stdout_fd = to.get(),
                    .stderr_fd = null.get()});
  to.reset();
  std::string text;
  std::array<char, 4096> part;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry = {.fd = from.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) == 0) break;
    const ssize_t count = ::read(from.get(), part.data(), part.size());
    if (count == 0 || (count < 0 && errno != EINTR)) break;
    if (count > 0) text.append(part.data(), static_cast<std::size_t>(count));
  }
  ::kill(pid, SIGKILL);  // not waited for yet: it is ours
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

}  // namespace

std::optional<std::string> node_address_in(std::string_view text) {
  constexpr std::string_view kField = " NodeAddr=";
  const std::size_t field = text.find(kField);
  if (field == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(field + kField.size());
  const std::string_view value = rest.substr(0, rest.find_first_of(" \n"));
  if (value.empty()) return std::nullopt;
  return std::string(value);
}

std::optional<std::string> slurm_address_of(const std::string& node) {
  try {
    return node_address_in(output_of({"scontrol", "--oneliner", "show", "node", node}));
  } catch (const Error&) {
    return std::nullopt;  // there is no scontrol in most containers
  }
}

}  // namespace lockstep
