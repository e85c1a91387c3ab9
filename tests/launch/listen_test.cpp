#include "launch/listen.h"

#include <fcntl.h>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::InvalidArgument;
using lockstep::listen_on;
using lockstep::listen_on_each;
using lockstep::port_of;
using lockstep::SystemError;
using lockstep::UniqueFd;

TEST(Listen, a_free_port_is_held_from_its_choice) {
  const UniqueFd socket = listen_on("127.0.0.1", 0);
  const int port = port_of(socket);
  EXPECT_GT(port, 0);
  try {
    listen_on("127.0.0.1", port);
    FAIL() << "a second listener was let in";
  } catch (const SystemError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("127.0.0.1 port " + std::to_string(port)), std::string::npos) << message;
    EXPECT_NE(message.find("the port is taken"), std::string::npos) << message;
    EXPECT_NE(message.find("process " + std::to_string(::getpid())), std::string::npos) << message;
  }
}

TEST(Listen, a_port_is_free_again_when_the_socket_is_closed) {
  UniqueFd socket = listen_on("127.0.0.1", 0);
  const int port = port_of(socket);
  socket.reset();
  EXPECT_EQ(port_of(listen_on("127.0.0.1", port)), port);
}

TEST(Listen, workers_do_not_inherit_the_socket_and_it_does_not_block) {
  const UniqueFd socket = listen_on("127.0.0.1", 0);
  EXPECT_TRUE(::fcntl(socket.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK);
}

TEST(Listen, both_families_are_known) {
  EXPECT_GT(port_of(listen_on("0.0.0.0", 0)), 0);
  try {
    EXPECT_GT(port_of(listen_on("::1", 0)), 0);
  } catch (const SystemError&) {
    GTEST_SKIP() << "no IPv6 here";
  }
}

TEST(Listen, several_addresses_have_one_port_and_others_none) {
  const auto sockets = listen_on_each({"127.0.0.1", "127.0.0.2", "192.0.2.7"}, 0);
  ASSERT_EQ(sockets.size(), 2u) << "the last one is not this machine's";
  EXPECT_EQ(port_of(sockets[0]), port_of(sockets[1]));
  EXPECT_EQ(port_of(listen_on("127.0.0.3", port_of(sockets[0]))), port_of(sockets[0]));
  EXPECT_THROW(listen_on_each({"127.0.0.3", "127.0.0.2"}, port_of(sockets[0])), SystemError);
  EXPECT_THROW(listen_on_each({"192.0.2.7"}, 0), SystemError);
}

TEST(Listen, names_and_impossible_ports_are_refused) {
  EXPECT_THROW(listen_on("localhost", 0), InvalidArgument);
  EXPECT_THROW(listen_on("", 0), InvalidArgument);
  EXPECT_THROW(listen_on("127.0.0.1", -1), InvalidArgument);
  EXPECT_THROW(listen_on("127.0.0.1", 65536), InvalidArgument);
}

TEST(Listen, an_address_of_another_machine_is_named_as_such) {
  try {
    listen_on("192.0.2.1", 0);  // an address that no machine has
    FAIL();
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("192.0.2.1 port 0: this machine does not have"),
              std::string::npos);
  }
}
