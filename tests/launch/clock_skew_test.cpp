#include "launch/clock_skew.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(ClockSkew, AFewSecondsAreNothingToSpeakOf) {
  EXPECT_FALSE(clock_warning("b", 1000s, 1000s));
  EXPECT_FALSE(clock_warning("b", 1005s, 1000s));
  EXPECT_FALSE(clock_warning("b", 1000s, 1005s));
}

TEST(ClockSkew, MoreIsNamedWithItsDirection) {
  const std::string ahead = clock_warning("b", 1090s, 1000s).value_or("");
  EXPECT_NE(ahead.find("clock of node b is 90 s ahead of"), std::string::npos) << ahead;
  const std::string behind = clock_warning("b", 1000s, 1007s).value_or("");
  EXPECT_NE(behind.find("clock of node b is 7 s behind"), std::string::npos) << behind;
  EXPECT_NE(behind.find("set-ntp"), std::string::npos) << behind;
}

}  // namespace
}  // namespace lockstep
