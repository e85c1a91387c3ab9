#include "lockstep/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <nlohmann/json.hpp>

#include "core/subprocess.h"
#include "core/unique_fd.h"
#include "lockstep/environment.h"
#include "lockstep/record.h"
#include "lockstep/store.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Set in the processes that spawn() starts: "<number of the call in main>/<rank>".
constexpr const char* kMark = "LOCKSTEP_SPAWN";

int calls_so_far = 0;  // main() makes the same calls in every process

std::vector<std::string> own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (arguments.empty()) throw SystemError("spawn: /proc/self/cmdline cannot be read");
  arguments[0] = fs::read_symlink("/proc/self/exe").string();
  return arguments;
}

/// A folder for the processes' error files.
class ErrorFolder {
 public:
  ErrorFolder() {
    std::string name = (fs::temp_directory_path() / "lockstep_spawn_XXXXXX").string();
    if (!mkdtemp(name.data())) throw_errno(concat("spawn: making a folder like ", name));
    path_ = name;
  }
  ~ErrorFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ErrorFolder(const ErrorFolder&) = delete;
  ErrorFolder& operator=(const ErrorFolder&) = delete;

  std::string file_of(int rank) const { return (path_ / concat("rank_", rank, ".json")).string(); }

  /// What the process wrote about its end; nothing if it wrote nothing.
  std::string message_of(int rank) const {
    std::ifstream file(file_of(rank));
    const auto record = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    if (record.is_discarded()) return "";
    const auto pointer = nlohmann::json::json_pointer("/message/message");
    return record.contains(pointer) ? concat(": ", record[pointer].get<std::string>()) : "";
  }

 private:
  fs::path path_;
};

std::vector<Subprocess> start_all(int nprocs, int port, const ErrorFolder& errors) {
  const auto environment = Environment::of_process();
  std::vector<Subprocess> processes;
  for (int rank = 0; rank < nprocs; ++rank) {
    SubprocessOptions options{
        .argv = own_command_line(),
        .set_environment = {{kMark, concat(calls_so_far, "/", rank)},
                            {"RANK", std::to_string(rank)},
                            {"LOCAL_RANK", std::to_string(rank)},
                            {"WORLD_SIZE", std::to_string(nprocs)},
                            {"LOCAL_WORLD_SIZE", std::to_string(nprocs)},
                            {"GROUP_RANK", "0"},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", std::to_string(port)},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"TORCHELASTIC_ERROR_FILE", errors.file_of(rank)}},
        // A launcher above has a place for this process, not for those that it starts.
        .unset_environment = {"LOCKSTEP_AGENT"}};
    // Otherwise every process starts a thread for every core.
    if (nprocs > 1 && !environment.has("OMP_NUM_THREADS")) {
      options.set_environment["OMP_NUM_THREADS"] = "1";
    }
    processes.emplace_back(options);
  }
  return processes;
}

// The first of those that have failed: a rank that was killed comes before those that report it,
// and of those that left a record, the one that left it first.
std::optional<int> first_failure(std::vector<Subprocess>& processes, const ErrorFolder& errors) {
  std::optional<int> first;
  auto first_time = fs::file_time_type::max();
  for (std::size_t rank = 0; rank < processes.size(); ++rank) {
    const auto status = processes[rank].wait_for(std::chrono::milliseconds(0));
    if (!status || status->success()) continue;
    std::error_code none;
    auto time = fs::last_write_time(errors.file_of(static_cast<int>(rank)), none);
    if (none) time = fs::file_time_type::min();
    if (!first || time < first_time) {
      first = static_cast<int>(rank);
      first_time = time;
    }
  }
  return first;
}

/// Passes SIGTERM and SIGUSR1, with which a cluster asks a job to save and stop, on to the ranks:
/// dying of them would kill the ranks before they can. A handler that the program has installed
/// itself is left alone.
class ForwardedSignals {
 public:
  ForwardedSignals() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw_errno("spawn: pipe");
    read_end_ = UniqueFd(ends[0]);
    write_end_ = UniqueFd(ends[1]);
    inbox = write_end_.get();
    for (auto& [number, before] : replaced_) {
      ::sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_DFL) continue;
      struct sigaction action = {};
      action.sa_handler = note;
      action.sa_flags = SA_RESTART;
      ::sigaction(number, &action, nullptr);
    }
  }
  ~ForwardedSignals() {
    for (const auto& [number, before] : replaced_) {
      if (before.sa_handler == SIG_DFL) ::sigaction(number, &before, nullptr);
    }
    inbox = -1;
  }
  ForwardedSignals(const ForwardedSignals&) = delete;
  ForwardedSignals& operator=(const ForwardedSignals&) = delete;

  int fd() const { return read_end_.get(); }

  void pass_on(std::vector<Subprocess>& processes) const {
    for (unsigned char number = 0; ::read(fd(), &number, 1) == 1;) {
      for (auto& process : processes) {
        if (!process.status()) process.signal(number);
      }
    }
  }

 private:
  static void note(int number) {
    const int error = errno;
    const auto byte = static_cast<unsigned char>(number);
    [[maybe_unused]] const auto written = ::write(inbox, &byte, 1);
    errno = error;
  }

  static inline std::atomic<int> inbox = -1;  // a handler can reach nothing else
  UniqueFd read_end_, write_end_;
  std::array<std::pair<int, struct sigaction>, 2> replaced_{{{SIGTERM, {}}, {SIGUSR1, {}}}};
};

// Waits until all have ended well or one has not; returns the rank of that one.
std::optional<int> wait_for_all(std::vector<Subprocess>& processes, const ErrorFolder& errors) {
  const ForwardedSignals signals;
  while (true) {
    signals.pass_on(processes);
    if (const auto failed = first_failure(processes, errors)) return failed;
    std::vector<pollfd> watched = {{.fd = signals.fd(), .events = POLLIN, .revents = 0}};
    for (auto& process : processes) {
      if (!process.status())
        watched.push_back({.fd = process.pidfd(), .events = POLLIN, .revents = 0});
    }
    if (watched.size() == 1) return std::nullopt;
    if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) throw_errno("spawn: poll");
  }
}

void stop_all(std::vector<Subprocess>& processes) {
  for (auto& process : processes) {
    if (!process.status()) process.signal(SIGTERM);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (auto& process : processes) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    process.wait_for(std::max(left, std::chrono::milliseconds(0)));
  }
  processes.clear();  // kills what is left
}

[[noreturn]] void run_as_rank(const std::function<void(int)>& fn, int rank) {
  std::exit(record([&] {
    fn(rank);
    return 0;
  }));
}

}  // namespace

void spawn(const std::function<void(int rank)>& fn, int nprocs) {
  ++calls_so_far;
  if (const char* mark = std::getenv(kMark)) {
    const std::string text = mark;
    const auto slash = text.find('/');
    const int call = std::atoi(text.c_str());
    if (call == calls_so_far) run_as_rank(fn, std::atoi(text.c_str() + slash + 1));
    if (call < calls_so_far) throw InvalidArgument("spawn: called inside a spawned process");
    return;  // an earlier call of main(), whose ranks have ended long ago
  }
  if (nprocs <= 0)
    throw InvalidArgument(concat("spawn: nprocs is ", nprocs, "; it must be positive"));

  // The store lives here, so that it outlives rank 0.
  const Store store = Store::tcp({.serve = true});
  const ErrorFolder errors;
  auto processes = start_all(nprocs, store.port(), errors);
  const auto failed = wait_for_all(processes, errors);
  if (!failed) return;
  const ExitStatus status = *processes[*failed].status();
  stop_all(processes);
  throw SpawnFailed(concat("spawn: rank ", *failed, " ended with ", status.describe(),
                           errors.message_of(*failed)),
                    {.rank = *failed, .exit_code = status.exit_code, .signal = status.signal});
}

}  // namespace lockstep
