#include "core/signal_names.h"

#include <csignal>

#include <gtest/gtest.h>

using lockstep::signal_name;
using lockstep::signal_number;

TEST(SignalNames, every_signal_is_found_by_the_name_it_is_given) {
  for (int number = 1; number <= 31; ++number) {
    EXPECT_EQ(signal_number(signal_name(number)), number) << signal_name(number);
  }
  for (int number = SIGRTMIN; number <= SIGRTMAX; ++number) {
    EXPECT_EQ(signal_number(signal_name(number)), number) << signal_name(number);
  }
}

TEST(SignalNames, the_prefix_may_be_left_out) {
  EXPECT_EQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_EQ(signal_number("TERM"), SIGTERM);
  EXPECT_EQ(signal_number("SIGUSR1"), SIGUSR1);
}

TEST(SignalNames, aliases_and_real_time_signals_are_known) {
  EXPECT_EQ(signal_number("SIGIOT"), SIGABRT);
  EXPECT_EQ(signal_number("SIGIO"), SIGPOLL);
  EXPECT_EQ(signal_number("SIGCLD"), SIGCHLD);
  EXPECT_EQ(signal_number("RTMIN+2"), SIGRTMIN + 2);
  EXPECT_EQ(signal_number("SIGRTMAX-1"), SIGRTMAX - 1);
}

TEST(SignalNames, what_is_no_signal_has_no_number) {
  for (const char* name : {"", "SIG", "SIGSIGTERM", "term", "TERM ", "15", "RTMIN-1", "RTMIN+",
                           "RTMIN+-1", "RTMAX-99"}) {
    EXPECT_EQ(signal_number(name), std::nullopt) << name;
  }
  EXPECT_EQ(signal_name(99), "signal 99");
}
