// Hosts a store for tests and benchmarks in other languages: prints its port, then obeys the lines
// of standard input until that ends.
//
//   status WORLD_SIZE   prints "missing" with the ranks that have not arrived ("unknown" where that
//                       cannot be told) and a line "waits PID KEY" per client and key; then "end"
//   keyspace EPOCH      begins a new keyspace; prints "end"
#include <iostream>
#include <sstream>
#include <string>

#include "launch/listen.h"
#include "launch/store_server.h"

namespace {

using lockstep::StoreServer;

void print_status(const StoreServer& server, int world_size) {
  const auto status = server.status();
  std::cout << "missing";
  if (const auto missing = ranks_not_arrived(status, world_size)) {
    for (const int rank : *missing) std::cout << ' ' << rank;
  } else {
    std::cout << " unknown";
  }
  std::cout << '\n';
  for (const auto& client : status.clients) {
    for (const auto& key : client.awaited_keys) {
      std::cout << "waits " << client.pid << ' ' << key << '\n';
    }
  }
}

void serve() {
  StoreServer server({.listener = lockstep::listen_on("127.0.0.1", 0),
                      .log = [](const std::string& line) { std::cerr << line + '\n'; }});
  std::cout << server.port() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    std::uint64_t number = 0;
    words >> command >> number;
    if (command == "status") print_status(server, static_cast<int>(number));
    if (command == "keyspace") server.new_keyspace(number);
    std::cout << "end" << std::endl;
  }
}

}  // namespace

int main() {
  try {
    serve();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
