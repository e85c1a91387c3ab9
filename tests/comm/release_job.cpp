// A rank is killed in the middle of a collective: how long until the last of the others is let go?
//
//   release_job BACKEND KILLS
//
// For each collective, KILLS times: ranks are forked, meet, and call it again and again until the
// victim is killed. Prints "<collective> <leader|other> <milliseconds>" for each kill. Ends with 1
// if a survivor is told anything but that it lost the victim, or has something left of the world
// when that is gone: memory, descriptors, files.
//
// Processes are forked before libtorch has any threads, so that one kill takes a fraction of a
// second.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "lockstep/error.h"
#include "lockstep/store.h"
#include "lockstep/world.h"
#include "tests/support/free_port.h"

namespace {

using lockstep::concat;
using lockstep::ProcessGroup;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr std::int64_t kCount = 300'000;  // elements: many chunks, whatever the way
constexpr int kMostRanks = 8;
constexpr auto kTimeout = 60s;  // of an operation: nobody is let go by it

struct Collective {
  const char* name;
  std::function<std::function<void()>(ProcessGroup&)> prepare;
};

std::vector<at::Tensor> parts_of(const at::Tensor& all, int count) {
  return all.chunk(count);
}

std::vector<Collective> every_collective() {
  const auto ones = [](std::int64_t count = kCount) { return torch::ones({count}); };
  return {
      {"all_reduce", [=](ProcessGroup& g) { return [&g, t = ones()] { g.all_reduce(t); }; }},
      {"reduce", [=](ProcessGroup& g) { return [&g, t = ones()] { g.reduce(t); }; }},
      {"broadcast", [=](ProcessGroup& g) { return [&g, t = ones()] { g.broadcast(t); }; }},
      {"all_gather",
       [=](ProcessGroup& g) {
         return [&g, in = ones(), out = ones(g.size() * kCount)] {
           g.all_gather_into_tensor(out, in);
         };
       }},
      {"reduce_scatter",
       [=](ProcessGroup& g) {
         return
             [&g, out = ones(), in = ones(g.size() * kCount)] { g.reduce_scatter_tensor(out, in); };
       }},
      {"all_to_all",
       [=](ProcessGroup& g) {
         return [&g, in = ones(g.size() * kCount), out = ones(g.size() * kCount)] {
           g.all_to_all_single(out, in);
         };
       }},
      {"gather",
       [=](ProcessGroup& g) {
         return [&g, in = ones(), all = ones(g.size() * kCount)] {
           std::vector<at::Tensor> out;
           if (g.rank() == 0) out = parts_of(all, g.size());
           g.gather(out, in);
         };
       }},
      {"scatter",
       [=](ProcessGroup& g) {
         return [&g, out = ones(), all = ones(g.size() * kCount)] {
           std::vector<at::Tensor> in;
           if (g.rank() == 0) in = parts_of(all, g.size());
           g.scatter(out, in);
         };
       }},
      {"barrier", [](ProcessGroup& g) { return [&g] { g.barrier(); }; }},
      {"send_recv",
       [=](ProcessGroup& g) {
         return [&g, out = ones(), in = ones()] {
           const int next = (g.rank() + 1) % g.size();
           const int previous = (g.rank() + g.size() - 1) % g.size();
           lockstep::Work sent = g.isend(out, {.peer = next});
           g.recv(in, {.peer = previous});
           sent.wait();
         };
       }},
      {"ordered_mean",
       [=](ProcessGroup& g) {
         const auto reduction = std::make_shared<lockstep::OrderedReduction>(g.impl());
         return [reduction, t = ones()] {
           reduction->mean(t, lockstep::OrderedReduction::Urgency::wait_now)->waitAndThrow();
         };
       }},
  };
}

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

/// What processes tell each other.
struct Notes {
  std::atomic<int> calls;  // that the victim has begun
  std::atomic<std::int64_t> killed_at;
  std::atomic<std::int64_t> released_at[kMostRanks];
};

std::multiset<std::string> open_descriptors() {
  std::multiset<std::string> kinds;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = fs::read_symlink(entry.path(), gone).string();
    if (gone || target.starts_with("/proc/")) continue;
    kinds.insert(target.substr(0, target.find(":[")));  // "socket:[123]"
  }
  return kinds;
}

void check_nothing_is_left(const std::multiset<std::string>& before) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:") != std::string::npos) throw lockstep::Error("still mapped: " + line);
  }
  std::string open;
  for (const std::string& kind : open_descriptors()) {
    if (open_descriptors().count(kind) > before.count(kind)) open += " " + kind;
  }
  if (!open.empty()) throw lockstep::Error("still open:" + open);
}

struct Kill {
  std::string backend;
  int ranks = 3;
  int machines = 1;
  int victim = 1;
};

// One that ends earlier would be taken for another victim.
void await_all_released(const Kill& kill, const Notes& notes) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  const auto waits = [&](int rank) { return rank != kill.victim && notes.released_at[rank] == 0; };
  for (int rank = 0; rank < kill.ranks; ++rank) {
    while (waits(rank) && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
  }
}

[[noreturn]] void be_rank(const Kill& kill, int rank, int port, Notes& notes,
                          const Collective& collective) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(kill.ranks));
  set("LOCAL_RANK", std::to_string(rank));
  set("LOCAL_WORLD_SIZE", std::to_string(kill.ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  if (kill.machines > 1) set("LOCKSTEP_MACHINE", concat("m", rank * kill.machines / kill.ranks));
  try {
    at::set_num_threads(1);
    // The event loop of a store's server keeps a pipe for the rest of the process.
    lockstep::Store::tcp({.serve = true});
    const auto before = open_descriptors();
    {
      lockstep::World world =
          lockstep::init({.backend = kill.backend, .device = "cpu", .timeout = kTimeout});
      if (world.group().backend() != kill.backend) throw lockstep::Error("ranks share no memory");
      const auto call = collective.prepare(world.group());
      try {
        while (true) {
          if (rank == kill.victim) ++notes.calls;
          call();
        }
      } catch (const lockstep::PeerLost& lost) {
        notes.released_at[rank] = now_ns();
        // Ranks of another machine cannot see whose process has ended.
        const bool named = lost.peers() == std::vector<int>{kill.victim};
        if (!named && (kill.machines == 1 || !lost.peers().empty())) {
          throw lockstep::Error(lost.what());
        }
        await_all_released(kill, notes);
      }
    }
    check_nothing_is_left(before);
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "release_job: %s on %s, rank %d: %s\n", collective.name,
                 kill.backend.c_str(), rank, error.what());
  }
  std::_Exit(1);
}

// Files that a library could leave: of memory that processes share, and of the meeting. Folders
// in /dev/shm are other tests'.
std::set<std::string> files_of_ours() {
  std::set<std::string> found;
  for (const auto& folder : {fs::path("/dev/shm"), fs::temp_directory_path()}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      const std::string name = entry.path().filename().string();
      const bool may_be_ours =
          name.find("lockstep") != std::string::npos && !entry.is_directory(none);
      if (folder != "/dev/shm" || may_be_ours) found.insert(name);
    }
  }
  return found;
}

/// Milliseconds until the last survivor was let go; negative when something was wrong.
double release_time(const Kill& kill, const Collective& collective) {
  void* memory =
      mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& notes = *new (memory) Notes{};
  const int port = lockstep::testing::free_port();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kill.ranks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) be_rank(kill, rank, port, notes, collective);
    ranks.push_back(pid);
  }
  const pid_t victim = ranks[static_cast<std::size_t>(kill.victim)];
  bool good = true;
  // The ranks need a second to meet on a busy machine, or find that they cannot.
  while (notes.calls < 20 && good) {
    std::this_thread::sleep_for(1ms);
    for (const pid_t pid : ranks) good = good && waitpid(pid, nullptr, WNOHANG) == 0;
  }
  notes.killed_at = now_ns();
  ::kill(victim, SIGKILL);
  double slowest = 0;
  for (int rank = 0; rank < kill.ranks; ++rank) {
    int status = 0;
    const bool known = waitpid(ranks[static_cast<std::size_t>(rank)], &status, 0) > 0;
    if (rank == kill.victim) continue;
    good = good && known && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    slowest =
        std::max(slowest, 1e-6 * static_cast<double>(notes.released_at[rank] - notes.killed_at));
  }
  munmap(memory, sizeof(Notes));
  return good ? slowest : -1;
}

int run(const std::string& backend, int kills) {
  setenv("LOCKSTEP_QUIET", "1", 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  const bool one_machine = backend == "shm";
  // With several machines the leader of the second, which alone talks to the first, and another.
  const std::vector<int> victims = one_machine ? std::vector<int>{1} : std::vector<int>{2, 3};
  const auto files = files_of_ours();
  int failures = 0;
  for (const Collective& collective : every_collective()) {
    for (const int victim : victims) {
      const Kill kill{.backend = backend,
                      .ranks = one_machine ? 3 : 4,
                      .machines = one_machine ? 1 : 2,
                      .victim = victim};
      for (int number = 0; number < kills; ++number) {
        const double milliseconds = release_time(kill, collective);
        if (milliseconds < 0) ++failures;
        std::printf("%s %s %.2f\n", collective.name, victim == 2 ? "leader" : "other",
                    milliseconds);
        std::fflush(stdout);
      }
    }
  }
  for (const std::string& name : files_of_ours()) {
    if (files.contains(name)) continue;
    std::fprintf(stderr, "release_job: the file %s was left\n", name.c_str());
    ++failures;
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: release_job shm|hybrid KILLS\n");
    return 2;
  }
  return run(argv[1], std::atoi(argv[2]));
}
