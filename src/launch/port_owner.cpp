#include "launch/port_owner.h"

#include <pwd.h>
#include <unistd.h>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestCommand = 80;

struct Socket {
  std::string inode;
  uid_t uid = 0;
  bool listens = false;
};

// A line of /proc/net/tcp: "0: 0100007F:1F90 00000000:0000 0A ... uid timeout inode".
std::optional<Socket> parse_socket(const std::string& line, int port) {
  std::istringstream words(line);
  std::string slot, local, remote, state, queues, timer, retransmits, timeout;
  Socket socket;
  if (!(words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> socket.uid >>
        timeout >> socket.inode)) {
    return std::nullopt;
  }
  const std::string_view hex = std::string_view(local).substr(local.find(':') + 1);
  int number = 0;
  std::from_chars(hex.data(), hex.data() + hex.size(), number, 16);
  // The kernel keeps closed connections itself, without an inode.
  if (number != port || socket.inode == "0") {
    return std::nullopt;
  }
  socket.listens = state == "0A";
  return socket;
}

std::optional<Socket> find_socket(int port, const std::string& proc) {
  std::optional<Socket> found;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream file(proc + table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      const auto socket = parse_socket(line, port);
      if (socket && (!found || (socket->listens && !found->listens))) {
        found = socket;
      }
    }
  }
  return found;
}

bool holds(const fs::path& process, const std::string& link) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(entry->path(), gone) == link) {
      return true;
    }
  }
  return false;
}

std::string command_of(const fs::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') {
    text.pop_back();
  }
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' '; }, ' ');
  if (text.empty()) {
    std::ifstream name(process / "comm");
    std::getline(name, text);
  }
  if (text.size() > kLongestCommand) {
    text = text.substr(0, kLongestCommand) + "...";
  }
  return text;
}

}  // namespace

std::string PortOwner::describe() const {
  if (pid != 0) {
    return concat("process ", pid, " (", command, ")");
  }
  passwd entry = {};
  passwd* found = nullptr;
  char memory[4096];
  ::getpwuid_r(uid, &entry, memory, sizeof memory, &found);
  return found == nullptr ? concat("a process of user ", uid)
                          : concat("a process of user ", found->pw_name);
}

std::string program_of(const std::string& process) {
  constexpr std::string_view kReplaced = " (deleted)";
  std::error_code hidden;
  std::string name = fs::read_symlink(process + "/exe", hidden).filename().string();
  if (name.ends_with(kReplaced)) name.resize(name.size() - kReplaced.size());
  return name;
}

std::optional<PortOwner> port_owner(int port, const std::string& proc) {
  const auto socket = find_socket(port, proc);
  if (!socket) {
    return std::nullopt;
  }
  PortOwner owner{.pid = 0, .command = {}, .program = {}, .uid = socket->uid};
  const std::string link = concat("socket:[", socket->inode, "]");
  std::error_code error;
  for (fs::directory_iterator entry(proc, error), end; !error && entry != end;
       entry.increment(error)) {
    const auto pid = parse_integer<pid_t>(entry->path().filename().string());
    if (pid && holds(entry->path(), link)) {
      owner.pid = *pid;
      owner.command = command_of(entry->path());
      owner.program = program_of(entry->path().string());
      break;
    }
  }
  return owner;
}

}  // namespace lockstep
