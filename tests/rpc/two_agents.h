#pragma once

#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/rpc.h"

namespace lockstep::rpc {

inline int count_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Two agents of this process, "server" and "caller", that reach each other by a unix socket with
/// ("shared") or without shared memory ("unix"), or by TCP, protected as the name says.
class TwoAgents {
 public:
  explicit TwoAgents(const std::string& transport, AgentOptions options = {})
      : transport_(transport), options_(std::move(options)) {
    options_.share_memory = transport == "shared";
    if (transport != "shared" && transport != "unix") {
      options_.address = "127.0.0.1";
      using Protection = AgentOptions::Protection;
      options_.protection = transport == "sealed"      ? Protection::sealed
                            : transport == "encrypted" ? Protection::encrypted
                                                       : Protection::handshake;
    }
    server = start("server");
    caller = start("caller");
  }
  ~TwoAgents() {
    caller.reset();
    server.reset();
    std::filesystem::remove_all(folder_);
  }

  void restart_server() {
    server.reset();
    server = start("server");
  }

 private:
  static std::string make_folder() {
    std::string path = std::filesystem::temp_directory_path() / "lockstep-rpc-XXXXXX";
    return mkdtemp(path.data());
  }

  // Agents that say so are on different machines.
  std::unique_ptr<Agent> start(const std::string& name) {
    AgentOptions options = options_;
    options.name = name;
    if (!options.address.empty()) setenv("LOCKSTEP_MACHINE", name.c_str(), 1);
    auto agent = std::make_unique<Agent>(directory, options);
    unsetenv("LOCKSTEP_MACHINE");
    return agent;
  }

  std::string transport_;
  AgentOptions options_;
  std::string folder_ = make_folder();

 public:
  std::shared_ptr<Directory> directory = directory_in_folder(folder_);
  std::unique_ptr<Agent> server;
  std::unique_ptr<Agent> caller;
};

}  // namespace lockstep::rpc
