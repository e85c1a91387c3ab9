#include "launch/stop_signals.h"

#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::InvalidArgument;
using lockstep::SignalInbox;

namespace {

bool readable_now(int fd) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;
}

bool blocked(int number) {
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return ::sigismember(&mask, number) == 1;
}

// Gives a signal a disposition for as long as it lives.
class Disposition {
 public:
  Disposition(int number, void (*handler)(int)) : number_(number) {
    struct sigaction action = {};
    action.sa_handler = handler;
    ::sigaction(number, &action, &before_);
  }
  ~Disposition() { ::sigaction(number_, &before_, nullptr); }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;

 private:
  int number_;
  struct sigaction before_;
};

}  // namespace

TEST(SignalInbox, tells_what_stops_the_job_from_what_is_for_the_workers) {
  SignalInbox inbox;
  EXPECT_FALSE(readable_now(inbox.fd()));
  EXPECT_EQ(inbox.next(), std::nullopt);
  ::kill(::getpid(), SIGTERM);
  ::kill(::getpid(), SIGUSR2);
  EXPECT_TRUE(readable_now(inbox.fd()));
  EXPECT_EQ(inbox.next(), SIGUSR2);
  EXPECT_EQ(inbox.next(), SIGTERM);
  EXPECT_EQ(inbox.next(), std::nullopt);
  EXPECT_TRUE(inbox.is_stop(SIGTERM));
  EXPECT_FALSE(inbox.is_stop(SIGUSR2));
}

TEST(SignalInbox, a_signal_can_come_again_once_it_was_read) {
  SignalInbox inbox;
  for (int press = 0; press < 2; ++press) {
    ::kill(::getpid(), SIGINT);
    EXPECT_EQ(inbox.next(), SIGINT);
  }
}

TEST(SignalInbox, takes_other_stop_signals) {
  SignalInbox inbox({SIGUSR1, SIGALRM});
  ::kill(::getpid(), SIGUSR1);
  ::kill(::getpid(), SIGALRM);
  EXPECT_EQ(inbox.next(), SIGUSR1);
  EXPECT_EQ(inbox.next(), SIGALRM);
  EXPECT_TRUE(inbox.is_stop(SIGUSR1));
  EXPECT_FALSE(inbox.is_stop(SIGTERM));
  EXPECT_FALSE(blocked(SIGTERM));
}

TEST(SignalInbox, a_hangup_that_was_ignored_stays_ignored) {
  const Disposition ignored(SIGHUP, SIG_IGN);
  SignalInbox inbox;
  ::kill(::getpid(), SIGHUP);
  EXPECT_EQ(inbox.next(), std::nullopt);
}

TEST(SignalInbox, a_hangup_comes_otherwise) {
  const Disposition usual(SIGHUP, SIG_DFL);
  SignalInbox inbox;
  ::kill(::getpid(), SIGHUP);
  EXPECT_EQ(inbox.next(), SIGHUP);
}

TEST(SignalInbox, a_broken_pipe_is_an_error_of_the_write) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  {
    SignalInbox inbox;
    EXPECT_EQ(::write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  ::close(ends[1]);
}

TEST(SignalInbox, puts_everything_back_and_drops_what_was_not_read) {
  {
    SignalInbox inbox;
    EXPECT_TRUE(blocked(SIGTERM));
    ::kill(::getpid(), SIGTERM);
  }
  EXPECT_FALSE(blocked(SIGTERM));
  struct sigaction pipe = {};
  ::sigaction(SIGPIPE, nullptr, &pipe);
  EXPECT_EQ(pipe.sa_handler, SIG_DFL);
}

TEST(SignalInbox, refuses_signals_that_cannot_be_waited_for) {
  for (const int number : {SIGKILL, SIGSTOP, SIGSEGV, SIGCHLD, 0, 1000}) {
    EXPECT_THROW(SignalInbox({number}), InvalidArgument) << number;
  }
  EXPECT_FALSE(blocked(SIGUSR1));
}
