// rpc_bench SECONDS: rank 0 calls rank 1, and prints "name value" lines; rpc.py does the same in
// Python.
#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "lockstep/record.h"
#include "lockstep/rpc.h"
#include "lockstep/world.h"

namespace {

namespace rpc = lockstep::rpc;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The median of single calls, in us.
void latency(const std::string& name, double seconds, const std::function<void()>& call) {
  for (int count = 0; count < 10; ++count) call();
  std::vector<double> times;
  for (const auto start = Clock::now(); seconds_since(start) < seconds || times.size() < 5;) {
    const auto before = Clock::now();
    call();
    times.push_back(1e6 * seconds_since(before));
  }
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  std::cout << name << " " << times[times.size() / 2] << std::endl;
}

void measure(rpc::Agent& agent, double seconds) {
  latency("empty", seconds, [&] { agent.call({"worker1", "nothing"}).get(); });
  for (const auto& [name, bytes] :
       {std::pair("1k", 1 << 10), std::pair("1m", 1 << 20), std::pair("25m", 25 << 20)}) {
    const at::Tensor tensor = at::ones({bytes / 4});
    latency(name, seconds, [&, name = name] {
      const at::Tensor back = agent.call<at::Tensor>({"worker1", "echo"}, tensor).get();
      if (back.numel() != tensor.numel()) throw lockstep::Error(name);
    });
  }
  const at::Tensor shared = rpc::shared_tensor(agent, at::ones({25 << 18}));
  latency("25m_one_way", seconds, [&] {
    agent.call({"worker1", "take"}, at::ones({25 << 18})).get();
  });
  latency("25m_shared", seconds, [&] { agent.call({"worker1", "take"}, shared).get(); });

  std::deque<rpc::Future<void>> open;
  std::int64_t done = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    while (open.size() < 64) open.push_back(agent.call({"worker1", "nothing"}));
    open.front().get();
    open.pop_front();
    ++done;
  }
  std::cout << "rate " << static_cast<double>(done) / seconds_since(start) << std::endl;
  while (!open.empty()) {
    open.front().get();
    open.pop_front();
  }
}

}  // namespace

int main(int, char** arguments) {
  return lockstep::record([&] {
    const double seconds = std::stod(arguments[1]);
    at::set_num_threads(1);
    lockstep::World world = lockstep::init();
    rpc::Agent agent(world, {.setup = [](rpc::Agent& self) {
                       self.serve("nothing", [] {});
                       self.serve("echo", [](at::Tensor tensor) { return tensor; });
                       self.serve("take", [](at::Tensor) {});
                     }});
    if (world.rank() == 0) measure(agent, seconds);
    agent.shutdown();
    return 0;
  });
}
