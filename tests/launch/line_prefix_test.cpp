#include "launch/line_prefix.h"

#include <fcntl.h>
#include <cstdlib>
#include <regex>

#include <gtest/gtest.h>

#include "core/unique_fd.h"
#include "launch/wall_time.h"
#include "lockstep/error.h"

using lockstep::check_line_prefix;
using lockstep::Environment;
using lockstep::LinePrefix;
using lockstep::LinePrefixValues;
using lockstep::UniqueFd;

namespace {

const std::chrono::system_clock::time_point kWhen{std::chrono::milliseconds(1767323045678)};

LinePrefixValues values() {
  LinePrefixValues values;
  values.role_name = "trainer";
  values.rank = 5;
  values.local_rank = 1;
  values.node_rank = 2;
  values.host = "node2";
  values.epoch = 3;
  values.restart_count = 4;
  values.stream = "stderr";
  return values;
}

bool coloured_on(const UniqueFd& fd, const Environment::Variables& variables) {
  return lockstep::shows_colours(fd.get(), Environment(variables));
}

std::string made(std::string_view text) {
  return LinePrefix(text, values()).text(kWhen);
}

}  // namespace

TEST(LinePrefix, torchruns_names_and_ours_are_filled_in) {
  EXPECT_EQ(made(lockstep::kDefaultLinePrefix), "[trainer1]:");
  EXPECT_EQ(made("${role} $rank/${local_rank} ${node_rank}:${host} ${epoch} ${restart_count} "
                 "${stream}"),
            "trainer 5/1 2:node2 3 4 stderr");
}

TEST(LinePrefix, the_time_is_that_of_each_line) {
  const LinePrefix prefix("${time} [${rank}] ", values());
  EXPECT_TRUE(std::regex_match(prefix.text(kWhen), std::regex(R"(\d\d:\d\d:05\.678 \[5\] )")))
      << prefix.text(kWhen);
  EXPECT_NE(prefix.text(kWhen), prefix.text(kWhen + std::chrono::seconds(1)));
}

TEST(LinePrefix, dollar_signs_follow_pythons_templates) {
  EXPECT_EQ(made("$$rank"), "$rank");
  EXPECT_EQ(made("$5 ${rank ${} $"), "$5 ${rank ${} $");
  EXPECT_EQ(made("${unknown}|$ranks|${RANK}"), "${unknown}|$ranks|${RANK}");
}

TEST(LinePrefix, an_empty_template_is_no_prefix) {
  EXPECT_TRUE(LinePrefix("", values()).empty());
  EXPECT_TRUE(LinePrefix().empty());
  EXPECT_FALSE(LinePrefix("${time}", values()).empty());
}

TEST(LinePrefix, a_template_of_ours_with_an_unknown_name_is_refused) {
  check_line_prefix("--prefix", "${time} ${rank} $$x $5");
  try {
    check_line_prefix("--prefix", "[${rnk}]");
    FAIL();
  } catch (const lockstep::InvalidArgument& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("--prefix: '${rnk}' in '[${rnk}]' is not"))
        << error.what();
  }
}

TEST(LinePrefix, ranks_differ_in_colour_and_the_colour_ends_with_the_prefix) {
  LinePrefixValues other = values();
  other.rank = 6;
  const std::string one = LinePrefix("x", values()).coloured(kWhen);
  EXPECT_TRUE(one.ends_with("x\033[0m"));
  EXPECT_NE(one, LinePrefix("x", other).coloured(kWhen));
}

TEST(LinePrefix, colours_need_a_terminal_that_has_them_and_a_user_who_wants_them) {
  const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal);
  EXPECT_TRUE(coloured_on(terminal, {{"TERM", "xterm"}}));
  EXPECT_TRUE(coloured_on(terminal, {{"TERM", "xterm"}, {"NO_COLOR", ""}}));
  EXPECT_FALSE(coloured_on(terminal, {{"TERM", "xterm"}, {"NO_COLOR", "1"}}));
  EXPECT_FALSE(coloured_on(terminal, {{"TERM", "dumb"}}));
  EXPECT_FALSE(coloured_on(terminal, {}));
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  EXPECT_FALSE(coloured_on(null, {{"TERM", "xterm"}}));
}

TEST(WallTime, says_how_far_it_is_from_utc) {
  const std::string text = lockstep::wall_time(kWhen);
  EXPECT_TRUE(std::regex_match(text, std::regex(R"(2026-01-0[12]T\d\d:\d\d:05\.678[+-]\d\d:\d\d)")))
      << text;
}
