#include <chrono>
#include <cstring>

#include <gtest/gtest.h>

#include "core/crc32.h"
#include "lockstep/error.h"
#include "track/flat_config.h"
#include "track/sink_runner.h"
#include "track/tensorboard_sink.h"

using namespace lockstep;
using nlohmann::json;
using namespace std::chrono_literals;

namespace {

// Fails as long as it is told to.
class FailingSink : public Sink {
 public:
  struct State {
    bool fails = false;
    int opened = 0, written = 0;
  };
  explicit FailingSink(State& state) : state_(state) {}
  std::string name() const override { return "test"; }
  void open() override {
    ++state_.opened;
    if (state_.fails) throw SystemError("no room");
  }
  void write(const TrackRecord&) override { ++state_.written; }
  void flush() override {
    if (state_.fails) throw SystemError("no room");
  }
  void finish(bool) override {}

 private:
  State& state_;
};

}  // namespace

TEST(Crc32c, is_castagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
}

TEST(Tensorboard, a_record_has_its_length_and_two_masked_checksums) {
  const std::string record = tensorboard_record("abc");
  ASSERT_EQ(record.size(), 8 + 4 + 3 + 4);
  std::uint64_t length = 0;
  std::memcpy(&length, record.data(), 8);
  EXPECT_EQ(length, 3u);
  std::uint32_t masked = 0;
  std::memcpy(&masked, record.data() + 15, 4);
  const std::uint32_t plain = masked - 0xa282ead8u;
  EXPECT_EQ(plain << 15 | plain >> 17, crc32c("abc"));
}

TEST(FlatConfig, inner_names_follow_outer_ones) {
  EXPECT_EQ(flat_config({{"a", {{"b", 1}, {"c", {1, 2}}}}, {"d", nullptr}, {"e", "x"}}),
            (json{{"a.b", 1}, {"a.c", "[1,2]"}, {"e", "x"}}));
}

TEST(SinkRunner, a_sink_that_fails_is_tried_again_later_and_each_time_after_a_longer_while) {
  FailingSink::State state;
  std::vector<std::string> lines;
  SinkRunner runner(
      std::make_unique<FailingSink>(state),
      {.retry_after = 1s, .report = [&](const auto& line) { lines.push_back(line); }});
  const std::vector<TrackRecord> batch(3);
  SinkRunner::Clock::time_point now{1h};
  runner.write(batch, now);
  EXPECT_EQ(state.written, 3);
  state.fails = true;
  runner.write(batch, now);          // fails
  runner.write(batch, now + 500ms);  // not tried
  EXPECT_EQ(state.opened, 1);
  runner.write(batch, now + 1100ms);  // fails again
  runner.write(batch, now + 2200ms);  // not tried: it waits for 2 s now
  EXPECT_EQ(state.opened, 2);
  state.fails = false;
  runner.write(batch, now + 4s);
  EXPECT_EQ(state.opened, 3);
  EXPECT_EQ(runner.lost(), 12);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("no room"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("12 records are missing"), std::string::npos) << lines[1];
  state.fails = true;
  runner.write(batch, now + 5s);
  state.fails = false;
  runner.write(batch, now + 10s);
  EXPECT_EQ(lines.size(), 2u) << "once is enough";
}
