#include "launch/port_owner.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "core/unique_fd.h"
#include "tests/core/temporary_folder.h"

using lockstep::port_owner;
using lockstep::PortOwner;
using lockstep::UniqueFd;
using lockstep::testing::TemporaryFolder;

namespace {

// A socket that listens on a free loopback port.
struct Listener {
  Listener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(fd.get(), 1), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }

  UniqueFd fd;
  int port = 0;
};

}  // namespace

TEST(PortOwner, names_the_process_that_listens) {
  Listener listener;
  const auto owner = port_owner(listener.port);
  ASSERT_TRUE(owner);
  EXPECT_EQ(owner->pid, ::getpid());
  EXPECT_NE(owner->command.find("launch_test"), std::string::npos) << owner->command;
  EXPECT_EQ(owner->program, "launch_test");
  EXPECT_EQ(owner->program, lockstep::program_of("/proc/self"));
  EXPECT_EQ(owner->uid, ::getuid());
  EXPECT_EQ(owner->describe(),
            "process " + std::to_string(::getpid()) + " (" + owner->command + ")");
}

TEST(PortOwner, a_port_that_was_freed_has_none) {
  int port = 0;
  {
    Listener listener;
    port = listener.port;
  }
  EXPECT_FALSE(port_owner(port));
}

TEST(PortOwner, a_process_that_may_not_be_looked_into_is_named_by_its_user) {
  const TemporaryFolder proc;
  std::filesystem::create_directories(proc / "net");
  std::ofstream(proc / "net/tcp6")
      << "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt uid ...\n"
      << "   0: 00000000000000000000000000000000:733C 00000000000000000000000000000000:0000 0A "
         "00000000:00000000 00:00000000 00000000  4321        0 777 1\n";
  const auto owner = port_owner(0x733C, proc.path().string());
  ASSERT_TRUE(owner);
  EXPECT_EQ(owner->pid, 0);
  EXPECT_EQ(owner->uid, 4321u);
  EXPECT_EQ(owner->describe(), "a process of user 4321");
  EXPECT_FALSE(port_owner(0x733D, proc.path().string()));
}

TEST(PortOwner, has_the_name_of_its_executable_not_of_its_folder_also_after_that_was_replaced) {
  const TemporaryFolder proc;
  std::filesystem::create_directories(proc / "net");
  std::filesystem::create_directories(proc / "4711/fd");
  std::ofstream(proc / "net/tcp")
      << "  sl  local_address ...\n"
      << "   1: 0100007F:0051 00000000:0000 0A 00000000:00000000 00:00000000 00000000 22 0 51 1\n";
  std::filesystem::create_symlink("socket:[51]", proc / "4711/fd/3");
  std::ofstream(proc / "4711/cmdline") << "server";
  const auto program = [&] { return port_owner(0x51, proc.path().string()).value().program; };
  EXPECT_EQ(program(), "");
  std::filesystem::create_symlink("/opt/lockstep/bin/python3.11 (deleted)", proc / "4711/exe");
  EXPECT_EQ(program(), "python3.11");
}

TEST(PortOwner, a_listener_counts_before_a_connection_and_a_lingering_one_not_at_all) {
  const TemporaryFolder proc;
  std::filesystem::create_directories(proc / "net");
  std::ofstream(proc / "net/tcp")
      << "  sl  local_address ...\n"
      << "   0: 0100007F:0050 0100007F:1000 06 00000000:00000000 00:00000000 00000000 0 0 0 1\n"
      << "   1: 0100007F:0051 0100007F:1000 01 00000000:00000000 00:00000000 00000000 11 0 50 1\n"
      << "   2: 0100007F:0051 00000000:0000 0A 00000000:00000000 00:00000000 00000000 22 0 51 1\n";
  EXPECT_FALSE(port_owner(0x50, proc.path().string()));
  EXPECT_EQ(port_owner(0x51, proc.path().string()).value().uid, 22u);
}
