// An agent of machines_test.py. It serves the others, and calls them as the lines on its input say.
//
//   machine_job FOLDER NAME ADDRESS SECRET sealed|encrypted|handshake
//
//   add PEER SECONDS      PEER adds two tensors
//   back PEER SECONDS     PEER has this agent add two, and gives the sum
//   stay PEER SECONDS     PEER answers never
//
// Each is answered by a line: what came of it, and after how many seconds.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <sstream>
#include <string>

#include <ATen/Functions.h>

#include "lockstep/rpc.h"

namespace {

namespace rpc = lockstep::rpc;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kElements = 300000;  // several pieces of a message

at::Tensor first() {
  return at::arange(kElements, at::kFloat);
}
at::Tensor second() {
  return at::arange(kElements, at::kFloat).mul(0.25);
}

/// Until the program ends.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

std::string outcome(rpc::Agent& agent, const std::string& what, const rpc::Call& call) {
  try {
    if (what == "stay") {
      agent.call(call).get();
      return "answered";
    }
    const at::Tensor sum = what == "add" ? agent.call<at::Tensor>(call, first(), second()).get()
                                         : agent.call<at::Tensor>(call).get();
    return at::equal(sum, at::add(first(), second())) ? "sum" : "other";
  } catch (const rpc::CallTimeout&) {
    return "CallTimeout";
  } catch (const rpc::PeerDied&) {
    return "PeerDied";
  } catch (const rpc::NoSuchPeer&) {
    return "NoSuchPeer";
  } catch (const rpc::CallError& error) {
    return lockstep::concat("CallError(", error.what(), ")");
  }
}

rpc::AgentOptions::Protection protection_of(const std::string& name) {
  using Protection = rpc::AgentOptions::Protection;
  if (name == "encrypted") return Protection::encrypted;
  return name == "handshake" ? Protection::handshake : Protection::sealed;
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) return 2;
  Gate end;
  rpc::AgentOptions options{.name = words[2],
                            .address = words[3],
                            .protection = protection_of(words[5]),
                            .secret = words[4]};
  options.setup = [&end](rpc::Agent& agent) {
    agent.serve("add", [](at::Tensor a, at::Tensor b) { return at::add(a, b); });
    agent.serve("back", [&agent](const rpc::Caller& caller) {
      return agent.call<at::Tensor>({caller.name, "add"}, first(), second()).get();
    });
    agent.serve("stay", [&end] { end.wait(); });
  };
  rpc::Agent agent(rpc::directory_in_folder(words[1]), options);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string what, peer;
    double seconds = 0;
    in >> what >> peer >> seconds;
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(1000 * seconds));
    const auto begin = Clock::now();
    const std::string came = outcome(agent, what, {peer, what, timeout});
    const std::chrono::duration<double> took = Clock::now() - begin;
    std::cout << came << " " << took.count() << std::endl;
  }
  end.open();  // closing waits for functions that run
}
