#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/unique_fd.h"
#include "shm/team.h"

// Ranks are processes here, and one of them is killed.
using namespace lockstep;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 3, kVictim = 2;
const ReduceSpec kFloats{.type = ElementType::float32};

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// What the processes tell each other, beside the team's own segment.
struct Notes {
  std::atomic<int> pids[kRanks];
  std::atomic<int> calls;  // that the victim has begun
  std::atomic<std::int64_t> killed_at;
  std::atomic<std::int64_t> released_after[kRanks];
};

bool any_peer_ended(const Notes& notes) {
  for (const auto& pid : notes.pids) {
    if (pid == 0 || pid == getpid()) continue;
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid.load(), 0)));
    pollfd polled{.fd = process.get(), .events = POLLIN, .revents = 0};
    if (process.get() < 0 || poll(&polled, 1, 0) > 0) return true;
  }
  return false;
}

using Call = std::function<void(ShmTeam&, std::vector<float>&)>;

[[noreturn]] void be_rank(int rank, const std::shared_ptr<const SharedSegment>& segment,
                          Notes& notes, const Call& call) {
  notes.pids[rank] = getpid();
  ShmTeam team(segment, {.rank = rank, .size = kRanks, .timeout = 60s, .peer_ended = [&] {
                           return any_peer_ended(notes);
                         }});
  std::vector<float> data(900'000);
  try {
    while (true) {
      if (rank == kVictim) ++notes.calls;
      call(team, data);
    }
  } catch (const std::exception&) {
    notes.released_after[rank] = now_ns() - notes.killed_at;
    _exit(0);
  }
}

// Milliseconds until the last survivor was released.
double release_time(const Call& call) {
  const auto segment =
      std::make_shared<const SharedSegment>(SharedSegment::create(ShmTeam::bytes_needed(kRanks)));
  const SharedSegment memory = SharedSegment::create(sizeof(Notes));
  auto& notes = *reinterpret_cast<Notes*>(memory.data());
  std::fflush(stdout);  // so that the processes have nothing of it to write again
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) be_rank(rank, segment, notes, call);
    pids.push_back(pid);
  }
  while (notes.calls < 20) std::this_thread::sleep_for(1ms);
  notes.killed_at = now_ns();
  kill(pids[kVictim], SIGKILL);
  double slowest = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    waitpid(pids[static_cast<std::size_t>(rank)], &status, 0);
    if (rank == kVictim) continue;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    slowest = std::max(slowest, static_cast<double>(notes.released_after[rank]) * 1e-6);
  }
  return slowest;
}

}  // namespace

TEST(TeamOfProcesses, survivors_of_a_killed_rank_are_released_from_every_call) {
  constexpr std::int64_t kCount = 300'000;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const auto parts = [](std::vector<float>& data) {
    return std::vector<void*>{data.data(), data.data() + kCount, data.data() + 2 * kCount};
  };
  const auto const_parts = [parts](std::vector<float>& data) {
    const auto all = parts(data);
    return std::vector<const void*>(all.begin(), all.end());
  };
  const std::vector<std::pair<const char*, Call>> calls{
      {"barrier", [](ShmTeam& team, auto&) { team.barrier(); }},
      {"small all_reduce",
       [](ShmTeam& team, auto& data) { team.all_reduce(data.data(), 100, kFloats); }},
      {"all_reduce",
       [](ShmTeam& team, auto& data) { team.all_reduce(data.data(), kCount, kFloats); }},
      {"reduce", [](ShmTeam& team, auto& data) { team.reduce(data.data(), kCount, kFloats, 0); }},
      {"reduce_scatter",
       [&](ShmTeam& team, auto& data) {
         team.reduce_scatter(const_parts(data), data.data(), kCount, kFloats);
       }},
      {"broadcast",
       [](ShmTeam& team, auto& data) {
         team.broadcast({data.data(), kBytes}, 2);
       }},
      {"all_gather",
       [&](ShmTeam& team, auto& data) {
         team.all_gather({data.data(), kBytes}, parts(data));
       }},
      {"gather",
       [&](ShmTeam& team, auto& data) {
         team.gather({data.data(), kBytes}, team.rank() == 0 ? parts(data) : std::vector<void*>{},
                     0);
       }},
      {"scatter",
       [&](ShmTeam& team, auto& data) {
         team.scatter(team.rank() == 2 ? const_parts(data) : std::vector<const void*>{},
                      {data.data(), kBytes}, 2);
       }},
      {"all_to_all",
       [&](ShmTeam& team, auto& data) {
         std::vector<ShmTeam::ConstBytes> inputs;
         std::vector<ShmTeam::Bytes> outputs;
         for (void* part : parts(data)) inputs.push_back({part, kBytes});
         for (void* part : parts(data)) outputs.push_back({part, kBytes});
         team.all_to_all(inputs, outputs);
       }},
  };
  for (const auto& [name, call] : calls) {
    const double milliseconds = release_time(call);
    std::printf("%s: the last was released after %.1f ms\n", name, milliseconds);
    EXPECT_LT(milliseconds, 20'000) << name;  // and not the time-out
  }
}
