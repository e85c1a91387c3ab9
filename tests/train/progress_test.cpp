#include "lockstep/progress.h"

#include <fcntl.h>
#include <unistd.h>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

using lockstep::Progress;
using lockstep::ProgressOptions;
using lockstep::ProgressState;
using lockstep::short_duration;
using lockstep::short_number;
using namespace std::chrono_literals;

namespace {

/// What is written to a descriptor.
class Output {
 public:
  Output() {
    if (::pipe2(ends_, O_NONBLOCK) != 0) std::abort();
  }
  ~Output() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  int fd() const { return ends_[1]; }
  std::string text() const {
    std::string all(65536, '\0');
    const auto size = ::read(ends_[0], all.data(), all.size());
    all.resize(size > 0 ? size : 0);
    return all;
  }

 private:
  int ends_[2];
};

const Progress::Clock::time_point kStart{};

}  // namespace

TEST(Progress, numbers_are_short) {
  EXPECT_EQ(short_number(0), "0.00");
  EXPECT_EQ(short_number(9.994), "9.99");
  EXPECT_EQ(short_number(9.996), "10.0");
  EXPECT_EQ(short_number(99.96), "100");
  EXPECT_EQ(short_number(999.6), "1.00k");
  EXPECT_EQ(short_number(18'349), "18.3k");
  EXPECT_EQ(short_number(4.213e6), "4.21M");
}

TEST(Progress, durations_are_short) {
  EXPECT_EQ(short_duration(42s), "0:42");
  EXPECT_EQ(short_duration(4023s), "1:07:03");
  EXPECT_EQ(short_duration(72h + 2h), "3 d 02:00");
}

TEST(Progress, plain_lines_tell_rate_and_time_left) {
  Output output;
  Progress progress({.fd = output.fd(), .bar = false, .line_every = 5s, .unit = "tokens"});
  ProgressState state{.step = 100,
                      .total_steps = 300,
                      .epoch = 1,
                      .total_epochs = 2,
                      .count = 0,
                      .values = {{"loss", 2.5}}};
  progress.update(state, kStart);
  EXPECT_EQ(output.text(), "") << "there is no rate yet";
  state.step = 120;
  state.count = 20'000;
  progress.update(state, kStart + 4s);
  EXPECT_EQ(output.text(), "") << "too early";
  state.step = 150;
  state.count = 50'000;
  progress.update(state, kStart + 5s);
  EXPECT_EQ(output.text(),
            "epoch 1/2  step 150/300  loss 2.5  10.0k tokens/s  10.0 steps/s  left 0:15\n");
}

TEST(Progress, rates_are_those_of_the_last_seconds) {
  Output output;
  Progress progress({.fd = output.fd(), .bar = false, .line_every = 1s});
  ProgressState state;
  for (int second = 0; second <= 60; ++second) {
    state.step += second < 30 ? 1 : 100;
    progress.update(state, kStart + std::chrono::seconds(second));
  }
  const std::string text = output.text();
  EXPECT_TRUE(text.ends_with("100 steps/s\n")) << text.substr(text.size() - 80);
}

TEST(Progress, model_flops_are_shown_where_they_are_known) {
  Output output;
  Progress progress({.fd = output.fd(), .bar = false, .line_every = 1s, .unit = "tokens"});
  ProgressState state{.step = 0, .flops_per_count = 6e9, .peak_flops = 1e12};
  progress.update(state, kStart);
  state.step = 10;
  state.count = 100;
  progress.update(state, kStart + 1s);
  EXPECT_NE(output.text().find("MFU 60.0%"), std::string::npos);
}

TEST(Progress, the_bar_is_drawn_over_itself_and_messages_stand_above_it) {
  Output output;
  {
    Progress progress({.fd = output.fd(), .bar = true, .bar_every = 100ms});
    ProgressState state{.step = 5, .total_steps = 10};
    progress.update(state, kStart);
    EXPECT_EQ(output.text(), "\r[======>     ]  50%  step 5/10");
    progress.update(state, kStart + 50ms);
    EXPECT_EQ(output.text(), "") << "too early";
    progress.say("saved");
    EXPECT_EQ(output.text(), "\rsaved                         \n[======>     ]  50%  step 5/10");
  }
  EXPECT_EQ(output.text(), "\n") << "the shell's prompt comes on a line of its own";
}
