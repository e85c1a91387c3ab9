// rpc_chaos drive shared|tcp CALLS SEED: starts servers, calls them in random ways from several
// threads while it kills and restarts them, and checks that each call was answered rightly or
// failed by the error that it may fail with. rpc_chaos serve FOLDER NAME shared|tcp: one of the
// servers.
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/rpc.h"

namespace {

using namespace lockstep;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr int kServers = 3;

rpc::Blob make_blob(std::size_t bytes, unsigned char value) {
  auto memory = std::make_shared<std::vector<unsigned char>>(bytes, value);
  return {.data = reinterpret_cast<std::byte*>(memory->data()), .bytes = bytes, .owner = memory};
}

bool is_filled(const rpc::Blob& blob, std::size_t bytes, unsigned char value) {
  if (blob.bytes != bytes) return false;
  for (std::size_t at = 0; at < bytes; at += 997) {
    if (blob.data[at] != std::byte{value}) return false;
  }
  return true;
}

class Tally {
 public:
  int add(int amount) { return total_ += amount; }

 private:
  int total_ = 0;
};

rpc::AgentOptions options_for(const std::string& name, const std::string& way) {
  rpc::AgentOptions options{.name = name, .threads = 3, .timeout = 20s, .max_calls = 64};
  if (way == "tcp") {
    options.address = "127.0.0.1";
    setenv("LOCKSTEP_MACHINE", name.c_str(), 1);
  }
  return options;
}

int serve(const std::string& folder, const std::string& name, const std::string& way) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  rpc::AgentOptions options = options_for(name, way);
  options.setup = [](rpc::Agent& agent) {
    agent.serve("twice", [](int value) { return 2 * value; });
    agent.serve("fail", [](int value) -> int { throw std::runtime_error(std::to_string(value)); });
    agent.serve("slow", [] { std::this_thread::sleep_for(60ms); });
    agent.serve("echo", [](rpc::Blob blob) { return blob; });
    agent.serve("make", [](std::int64_t bytes, int value) {
      return make_blob(static_cast<std::size_t>(bytes), static_cast<unsigned char>(value));
    });
    agent.serve("die", [] { kill(getpid(), SIGKILL); });
    agent.serve_class<Tally>("Tally", [](auto& each) { each.method("add", &Tally::add); });
  };
  rpc::Agent agent(rpc::directory_in_folder(folder), options);
  for (;;) pause();
}

/// The servers' processes. One is started again as soon as it is gone.
class Servers {
 public:
  Servers(std::string program, std::string folder, std::string way)
      : program_(std::move(program)), folder_(std::move(folder)), way_(std::move(way)) {
    for (int number = 0; number < kServers; ++number) pids_.push_back(start(number));
  }

  void kill_one(int number) {
    const std::lock_guard lock(mutex_);
    kill(pids_[static_cast<std::size_t>(number)], SIGKILL);
    ++killed;
  }

  void restart_dead() {
    const std::lock_guard lock(mutex_);
    for (int number = 0; number < kServers; ++number) {
      pid_t& pid = pids_[static_cast<std::size_t>(number)];
      if (waitpid(pid, nullptr, WNOHANG) == pid) pid = start(number);
    }
  }

  void end() {
    const std::lock_guard lock(mutex_);
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    pids_.clear();
  }

  std::atomic<int> killed = 0;

 private:
  pid_t start(int number) {
    const std::string name = concat("server", number);
    const pid_t pid = fork();
    if (pid == 0) {
      execl(program_.c_str(), program_.c_str(), "serve", folder_.c_str(), name.c_str(),
            way_.c_str(), nullptr);
      _exit(127);
    }
    if (pid < 0) {  // kill(-1) would reach everybody
      std::perror("fork");
      std::exit(1);
    }
    return pid;
  }

  std::string program_, folder_, way_;
  std::mutex mutex_;
  std::vector<pid_t> pids_;
};

/// What became of the calls.
class Outcomes {
 public:
  void count(const std::string& what) {
    const std::lock_guard lock(mutex_);
    ++counts_[what];
  }
  void wrong(const std::string& what) {
    count("WRONG");
    std::cerr << what << "\n";
  }
  std::map<std::string, int> counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

// Until a server is there again, so that calls are not all spent on a dead one.
void await(rpc::Agent& agent, const std::string& peer) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      agent.call<int>({peer, "twice"}, 1).get();
      return;
    } catch (const rpc::CallError&) {
      std::this_thread::sleep_for(2ms);
    }
  }
}

// Runs one call, and says what became of it. Deaths may come at any time; all else must be
// expected.
template <typename Body>
void judge(rpc::Agent& agent, const std::string& peer, Outcomes& outcomes,
           const std::string& expected, Body body) {
  std::string outcome;
  std::string text;
  try {
    outcome = body() ? "answered" : "a wrong answer";
  } catch (const rpc::PeerDied&) {
    outcomes.count("PeerDied");
    return await(agent, peer);
  } catch (const rpc::NoSuchPeer&) {
    // Of a server that has just been started for the first time.
    outcome = expected == "CallTimeout" ? expected : "NoSuchPeer";
  } catch (const rpc::CallTimeout& error) {
    outcome = "CallTimeout", text = error.what();
  } catch (const rpc::RemoteException&) {
    outcome = "RemoteException";
  } catch (const rpc::WrongTypes&) {
    outcome = "WrongTypes";
  } catch (const std::exception& error) {
    text = error.what();
    if (text.find("answers instead of") != std::string::npos) {  // another has its port by now
      outcomes.count("PeerDied");
      return await(agent, peer);
    }
    outcome = "another error:";
  }
  // On a busy machine this process may hear of its time being over after the answer has come.
  if (expected == "CallTimeout" && outcome == "a wrong answer") outcome = expected;
  if (outcome != expected)
    return outcomes.wrong(concat(outcome, " instead of ", expected, " ", text));
  outcomes.count(outcome);
}

void one_call(rpc::Agent& agent, Servers& servers, Outcomes& outcomes, std::mt19937& random) {
  const int number = static_cast<int>(random() % kServers);
  const std::string peer = concat("server", number);
  const int value = static_cast<int>(random() % 200);
  const std::size_t sizes[] = {10, 5000, 20000, 300000, 2000000};
  const std::size_t bytes = sizes[random() % 5];
  const auto pattern = static_cast<unsigned char>(value);
  switch (random() % 100) {
    default:
      return judge(agent, peer, outcomes, "answered", [&] {
        return agent.call<int>({peer, "twice"}, value).get() == 2 * value;
      });
    case 0 ... 29:
      return judge(agent, peer, outcomes, "answered", [&] {
        const auto echo = agent.call<rpc::Blob>({peer, "echo"}, make_blob(bytes, pattern));
        return is_filled(echo.get(), bytes, pattern);
      });
    case 30 ... 39:
      return judge(agent, peer, outcomes, "answered", [&] {
        const auto blob =
            agent.call<rpc::Blob>({peer, "make"}, static_cast<std::int64_t>(bytes), value);
        return is_filled(blob.get(), bytes, pattern);
      });
    case 40 ... 49:
      return judge(agent, peer, outcomes, "RemoteException", [&] {
        return agent.call<int>({peer, "fail"}, value).get() == 0;
      });
    case 50 ... 54:
      return judge(agent, peer, outcomes, "CallTimeout", [&] {
        agent.call({peer, "slow", 5ms}).get();
        return false;
      });
    case 55:
      return judge(agent, peer, outcomes, "WrongTypes", [&] {
        return agent.call<float>({peer, "twice"}, value).get() == 0;
      });
    case 56 ... 59:
      return judge(agent, peer, outcomes, "answered", [&] {
        const auto tally = agent.create<Tally>({peer, "Tally"});
        for (int count = 0; count < 4; ++count) tally.call<int>("add", value);
        return tally.call<int>("add", 0).get() <= 4 * value;
      });
    case 60:
      return judge(agent, peer, outcomes, "PeerDied", [&] {
        agent.call({peer, "die"}).get();
        return false;
      });
    case 61:
      servers.kill_one(number);
      return judge(agent, peer, outcomes, "answered", [&] {
        return agent.call<int>({peer, "twice"}, value).get() == 2 * value;
      });
  }
}

int count_files(const std::string& folder, const std::string& part) {
  int count = 0;
  for (const auto& each : fs::directory_iterator(folder)) {
    std::error_code gone;
    const std::string target =
        each.is_symlink() ? fs::read_symlink(each, gone).string() : each.path().filename().string();
    count += target.find(part) != std::string::npos;
  }
  return count;
}

int drive(const std::string& program, const std::string& way, int calls, unsigned seed) {
  std::string folder = fs::temp_directory_path() / "lockstep-chaos-XXXXXX";
  if (!mkdtemp(folder.data())) return 1;
  const int sockets_before = count_files("/proc/self/fd", "socket:");
  Outcomes outcomes;
  Servers servers(program, folder, way);
  {
    rpc::Agent agent(rpc::directory_in_folder(folder), options_for("driver", way));
    std::atomic<bool> finished = false;
    std::thread keeper([&] {
      while (!finished) {
        servers.restart_dead();
        std::this_thread::sleep_for(5ms);
      }
    });
    std::atomic<int> left = calls;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 6; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(seed * 100 + thread);
        while (left-- > 0) one_call(agent, servers, outcomes, random);
      });
    }
    for (std::thread& thread : threads) thread.join();
    finished = true;
    keeper.join();
    servers.end();
  }
  fs::remove_all(folder);

  int total = 0;
  for (const auto& [what, count] : outcomes.counts()) {
    std::cout << what << ": " << count << "\n";
    total += count;
  }
  const int memory = count_files("/proc/self/fd", "memfd:lockstep-rpc");
  const int sockets = count_files("/proc/self/fd", "socket:") - sockets_before;
  std::cout << "calls: " << total << ", servers killed from outside: " << servers.killed
            << ", segments left: " << memory << ", sockets left: " << sockets << "\n";
  const bool good = total == calls && outcomes.counts()["WRONG"] == 0 && memory == 0 &&
                    sockets == 0 && outcomes.counts()["answered"] > calls / 3;
  std::cout << (good ? "Every call was answered or failed as it may." : "FAILED") << "\n";
  return good ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments, arguments + count);
  if (count == 5 && words[1] == "serve") return serve(words[2], words[3], words[4]);
  if (count == 5 && words[1] == "drive") {
    return drive("/proc/self/exe", words[2], std::stoi(words[3]),
                 static_cast<unsigned>(std::stoi(words[4])));
  }
  std::cerr << "usage: rpc_chaos drive shared|tcp CALLS SEED\n";
  return 2;
}
