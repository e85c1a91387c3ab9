#include "comm/mpi_thread.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <utility>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr const char* kMpiPlugin = "liblockstep_mpi.so";
constexpr std::size_t kErrorBytes = 512;
// How often operations are looked after: at once for a while, then less and less.
constexpr int kEagerLooks = 2000;
constexpr std::chrono::microseconds kShortestPause{20}, kLongestPause{1000};

using ErrorText = std::array<char, kErrorBytes>;

std::vector<std::string> plugin_places() {
  if (const char* path = std::getenv("LOCKSTEP_MPI_PLUGIN"); path != nullptr) return {path};
  std::error_code ignored;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<std::string> places;
  for (const char* beside : {"", "../lib", "../../lib", "../lib/lockstep"}) {
    places.push_back((folder / beside / kMpiPlugin).string());
  }
  return places;
}

const LockstepMpi& load_mpi() {
  std::string reason;
  for (const std::string& place : plugin_places()) {
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) continue;
    // Global, because Open MPI's own plugins expect its symbols there; never closed.
    void* library = ::dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      reason = first_line(::dlerror());
      continue;
    }
    if (const void* found = ::dlsym(library, LOCKSTEP_MPI_FUNCTIONS)) {
      return *static_cast<const LockstepMpi*>(found);
    }
    reason = concat("'", place, "' is of another version");
  }
  if (reason.empty()) {
    reason = concat("there is no ", kMpiPlugin,
                    "; install libopenmpi-dev and build lockstep again, or use gloo");
  }
  throw InvalidArgument(concat("backend mpi: ", reason));
}

// Alone it would be a job of one for MPI, whatever else this process is told.
void check_started_by_mpi() {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MV2_COMM_WORLD_SIZE"}) {
    if (std::getenv(name) != nullptr) return;
  }
  throw InvalidArgument(
      "backend mpi: this process was not started by mpirun; start the program with `mpirun -n N "
      "PROGRAM`, or use gloo under lockstep run");
}

// A port that nobody else is given while the socket lives. The store can still listen there: both
// allow the address to be used again, and this one does not listen.
struct HeldPort {
  UniqueFd socket;
  int number;
};

HeldPort hold_free_port() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  if (socket.get() < 0 ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.get(), generic, length) != 0 ||
      ::getsockname(socket.get(), generic, &length) != 0) {
    throw_errno("backend mpi: looking for a free port");
  }
  return {.socket = std::move(socket), .number = ntohs(address.sin_port)};
}

std::string own_name() {
  const char* local_size = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (local_size != nullptr && size != nullptr && std::strcmp(local_size, size) == 0) {
    return "127.0.0.1";
  }
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) throw_errno("gethostname");
  return name.data();
}

}  // namespace

MpiThread& MpiThread::get() {
  static MpiThread thread;
  return thread;
}

MpiThread::MpiThread() {
  check_started_by_mpi();
  mpi_ = &load_mpi();
  thread_ = std::thread([this] { run(); });
  std::string problem;
  run_there([&] { start_mpi(problem); });
  if (problem.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    size_ = 0;  // there is nothing to end
  }
  changed_.notify_all();
  thread_.join();
  throw InvalidArgument(concat("backend mpi: ", problem));
}

MpiThread::~MpiThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool MpiThread::start_mpi(std::string& problem) {
  ErrorText error{};
  if (mpi_->start(&rank_, &size_, error.data(), error.size())) return true;
  problem = first_line(error.data());
  return false;
}

void MpiThread::run_there(const std::function<void()>& task) {
  std::promise<void> ended;
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace_back([&] {
      task();
      ended.set_value();
    });
  }
  changed_.notify_all();
  ended.get_future().wait();
}

void MpiThread::run() {
  int looks = 0;
  auto pause = kShortestPause;
  while (true) {
    std::deque<std::function<void()>> tasks;
    {
      std::unique_lock lock(mutex_);
      const auto has_work = [&] { return stopping_ || !tasks_.empty(); };
      if (active_.empty()) {
        changed_.wait(lock, has_work);
      } else if (looks > kEagerLooks) {
        changed_.wait_for(lock, pause, has_work);
        pause = std::min(2 * pause, kLongestPause);
      }
      if (stopping_ && tasks_.empty()) break;
      tasks.swap(tasks_);
    }
    for (const auto& task : tasks) task();
    if (look_after_all() || !tasks.empty()) {
      looks = 0;
      pause = kShortestPause;
    } else {
      ++looks;
    }
  }
  // Ending MPI waits for the other ranks, who may wait for an operation that is never to end.
  if (size_ > 0 && active_.empty() && given_up_.empty()) mpi_->finish();
}

void* MpiThread::make_group(const std::vector<int>& ranks, int number) {
  void* group = nullptr;
  ErrorText error{};
  run_there([&] {
    group = mpi_->make_group(ranks.data(), static_cast<int>(ranks.size()), number, error.data(),
                             error.size());
  });
  if (group == nullptr) throw Error(concat("backend mpi: making a group: ", error.data()));
  return group;
}

void MpiThread::post(Call call) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace_back([this, call = std::move(call)]() mutable { begin(std::move(call)); });
  }
  changed_.notify_all();
}

void MpiThread::begin(Call call) {
  if (std::ranges::count(given_up_, call.operation.group) > 0) {
    return call.failed(std::make_exception_ptr(std::runtime_error("the group was aborted")));
  }
  ErrorText error{};
  void* request = mpi_->begin(&call.operation, error.data(), error.size());
  if (request == nullptr) {
    return call.failed(std::make_exception_ptr(std::runtime_error(error.data())));
  }
  const auto deadline = std::chrono::steady_clock::now() + call.timeout;
  active_.push_back({.call = std::move(call), .request = request, .deadline = deadline});
}

bool MpiThread::look_after_all() {
  bool some_ended = false;
  const auto now = std::chrono::steady_clock::now();
  for (auto each = active_.begin(); each != active_.end();) {
    ErrorText error{};
    int source = -1;
    const int verdict = mpi_->test(each->request, &source, error.data(), error.size());
    if (verdict == 0 && now < each->deadline) {
      ++each;
      continue;
    }
    some_ended = true;
    Active ended = std::move(*each);
    each = active_.erase(each);
    if (verdict == 1) {
      ended.call.done(source);
    } else if (verdict == -1) {
      ended.call.failed(std::make_exception_ptr(std::runtime_error(error.data())));
    } else {
      ended.call.failed(std::make_exception_ptr(std::runtime_error(
          concat("Timed out waiting ", ended.call.timeout.count(), "ms for the other ranks"))));
      given_up_.push_back(ended.call.operation.group);
      abandoned_.push_back(std::move(ended));
    }
  }
  return some_ended;
}

void MpiThread::give_up(void* group) {
  const auto end_all = [this, group] {  // not waited for: the caller may hold locks
    if (std::ranges::count(given_up_, group) == 0) given_up_.push_back(group);
    for (auto each = active_.begin(); each != active_.end();) {
      if (each->call.operation.group != group) {
        ++each;
        continue;
      }
      Active ended = std::move(*each);
      each = active_.erase(each);
      ended.call.failed(std::make_exception_ptr(std::runtime_error("the group was aborted")));
      abandoned_.push_back(std::move(ended));
    }
  };
  {
    const std::lock_guard lock(mutex_);
    tasks_.emplace_back(end_all);
  }
  changed_.notify_all();
}

void meet_by_mpi() {
  if (std::getenv("MASTER_ADDR") != nullptr && std::getenv("MASTER_PORT") != nullptr) return;
  MpiThread& mpi = MpiThread::get();
  std::vector<int> everyone(static_cast<std::size_t>(mpi.size()));
  for (int rank = 0; rank < mpi.size(); ++rank) everyone[static_cast<std::size_t>(rank)] = rank;
  std::array<char, 320> place{};
  if (mpi.rank() == 0) {
    static const HeldPort port = hold_free_port();  // the environment names it from now on
    std::snprintf(place.data(), place.size(), "%s %d", own_name().c_str(), port.number);
  }
  std::promise<void> told;
  mpi.post({.operation = {.group = mpi.make_group(everyone, 0),
                          .kind = kMpiBroadcast,
                          .type = kMpiU8,
                          .reduction = kMpiSum,
                          .from = nullptr,
                          .to = place.data(),
                          .count = static_cast<std::int64_t>(place.size()),
                          .peer = 0,
                          .tag = 0,
                          .send_counts = nullptr,
                          .send_places = nullptr,
                          .receive_counts = nullptr,
                          .receive_places = nullptr},
            .done = [&](int) { told.set_value(); },
            .failed = [&](const std::exception_ptr& error) { told.set_exception(error); },
            .timeout = std::chrono::minutes(10)});
  told.get_future().get();
  char* port = std::strchr(place.data(), ' ');
  LOCKSTEP_CHECK(port != nullptr, "the place where ranks meet is '", place.data(), "'");
  *port++ = '\0';
  ::setenv("MASTER_ADDR", place.data(), /*replace=*/1);
  ::setenv("MASTER_PORT", port, /*replace=*/1);
}

}  // namespace lockstep
