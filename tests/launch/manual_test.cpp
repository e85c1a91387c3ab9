#include <algorithm>
#include <array>
#include <sstream>

#include <gtest/gtest.h>

#include "launch/completion.h"
#include "launch/help.h"
#include "launch/man_page.h"
#include "launch/manual_text.h"
#include "launch/option_table.h"
#include "lockstep/error.h"
#include "tests/support/said.h"

using lockstep::all_options;
using lockstep::CommandManual;
using lockstep::CommandWord;
using lockstep::completion_script;
using lockstep::concat;
using lockstep::Entry;
using lockstep::help_text;
using lockstep::LaunchCommand;
using lockstep::man_page;
using lockstep::Option;
using lockstep::OptionOrigin;
using lockstep::testing::contains;

namespace {

constexpr std::array<Entry, 2> kTwoCommands{
    {{"run", "Start a job's workers"}, {"stack", "It's: x"}}};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

}  // namespace

TEST(Help, names_every_option_its_variable_and_its_default) {
  const std::string run = help_text(LaunchCommand::run);
  const std::string launch = help_text(LaunchCommand::launch);
  for (const Option& option : all_options()) {
    const std::string name = concat("--", option.name);
    EXPECT_TRUE(contains(launch, name)) << name;
    EXPECT_EQ(contains(run, name), option.origin != OptionOrigin::launch) << name;
    if (!option.variable.empty()) {
      EXPECT_TRUE(contains(run, std::string(option.variable))) << name;
    }
  }
  EXPECT_TRUE(contains(run, "-t, --tee=STREAMS"));
  EXPECT_TRUE(contains(run, "Usage: lockstep run [OPTIONS] SCRIPT [ARGUMENTS]"));
}

TEST(Help, fits_a_terminal) {
  for (const std::string& line : lines_of(help_text(LaunchCommand::launch))) {
    const bool example = line.starts_with("  lockstep run");
    EXPECT_TRUE(line.size() <= 96 || example) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST(Help, says_each_heading_once) {
  const std::string text = help_text(LaunchCommand::run);
  for (const Option& option : all_options()) {
    const std::string title = concat("\n", heading(option.group), ":\n");
    EXPECT_EQ(text.find(title), text.rfind(title)) << title;
    EXPECT_TRUE(contains(text, title));
  }
}

TEST(Manual, every_option_has_an_entry_and_nothing_is_a_request_by_accident) {
  const std::string page = man_page("1.2");
  for (const Option& option : all_options()) {
    std::string name;
    for (const char c : concat("--", option.name)) {
      name += c == '-' ? concat('\\', c) : std::string(1, c);
    }
    EXPECT_TRUE(contains(page, name)) << name;
  }
  const std::array<std::string, 10> requests{".TH", ".SH", ".SS", ".TP", ".PP",
                                             ".B",  ".BR", ".br", ".nf", ".fi"};
  for (const std::string& line : lines_of(page)) {
    if (line.starts_with('.') || line.starts_with('\'')) {
      const std::string request = line.substr(0, line.find(' '));
      EXPECT_TRUE(std::ranges::find(requests, request) != requests.end() || request == ".RS" ||
                  request == ".RE")
          << line;
    }
    EXPECT_FALSE(line.empty()) << "an empty line is a request for space";
  }
}

TEST(Manual, commands_with_a_section_have_all_of_their_words_in_it_and_in_completions) {
  static constexpr std::array<CommandWord, 3> kWords{
      {{"show PATH", "Shows it"}, {"--at=PLACE", "Where"}, {"-h, --help", "This"}}};
  const CommandManual manual{
      .name = "thing", .arguments = "[OPTIONS]", .summary = "Does a thing.", .words = kWords};
  const std::string page = man_page("1.2", {&manual, 1});
  EXPECT_TRUE(contains(page, ".SH LOCKSTEP THING\n.B lockstep thing\n[OPTIONS]\n")) << page;
  EXPECT_TRUE(contains(page, ".B \\-\\-at=PLACE\nWhere\n")) << page;
  EXPECT_EQ(completion_words(manual), "show --at= --help");
  EXPECT_EQ(help_of(manual),
            "usage: lockstep thing [OPTIONS]\n\nDoes a thing.\n\n  show PATH   Shows it\n"
            "  --at=PLACE  Where\n  -h, --help  This\n");
}

TEST(Completion, knows_every_option_in_every_shell) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = completion_script(shell, kTwoCommands);
    for (const Option& option : all_options()) {
      const std::string dashes = std::string(shell) == "fish" ? "-l " : "--";
      EXPECT_TRUE(contains(script, dashes + std::string(option.name))) << shell << option.name;
    }
    EXPECT_TRUE(contains(script, "stack"));
  }
  EXPECT_THROW(completion_script("csh", kTwoCommands), lockstep::InvalidArgument);
}

TEST(Completion, quotes_what_shells_would_read) {
  EXPECT_TRUE(contains(completion_script("fish", kTwoCommands), R"('It\'s: x')"));
  EXPECT_TRUE(contains(completion_script("zsh", kTwoCommands), R"('stack:It'\''s\: x')"));
}

TEST(Wrap, keeps_long_words_whole) {
  EXPECT_EQ(lockstep::wrap("aa bb cc", 1, 6), " aa bb\n cc\n");
  EXPECT_EQ(lockstep::wrap("abcdefgh i", 2, 5), "  abcdefgh\n  i\n");
}
