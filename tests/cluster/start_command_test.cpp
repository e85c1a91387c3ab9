#include "cluster/start_command.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::Host;
using lockstep::InvalidArgument;
using lockstep::shell_words;
using lockstep::start_command;
using lockstep::StartCommand;
using lockstep::StarterKind;
using lockstep::StarterOptions;
using Words = std::vector<std::string>;

namespace {

constexpr const char* kBrief = R"({"secret":"hush"})";

StartCommand command_for(StarterKind kind, const Host& host = {.name = "n2", .task_index = 4}) {
  return start_command({.kind = kind,
                        .lockstep = "/opt/my tools/lockstep",
                        .ssh_options = {"-p", "2222"},
                        .brief_prefix = "/data/.lockstep-1-"},
                       host, {"agent"}, kBrief, 1);
}

}  // namespace

TEST(StartCommand, ssh_gets_a_line_for_a_shell_and_the_brief_on_standard_input) {
  const StartCommand command = command_for(StarterKind::ssh);
  EXPECT_EQ(command.argv, (Words{"ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20",
                                 "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
                                 "-p", "2222", "--", "n2", "exec '/opt/my tools/lockstep' agent"}));
  EXPECT_EQ(command.input, std::string(kBrief) + "\n");
  EXPECT_TRUE(command.has_input);
}

TEST(StartCommand, srun_gets_a_step_on_one_node_and_the_brief_in_the_environment) {
  const StartCommand command = command_for(StarterKind::srun);
  EXPECT_EQ(command.argv, (Words{"srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1",
                                 "--nodelist=n2", "--overlap", "--cpu-bind=none", "--quiet",
                                 "--export=ALL", "/opt/my tools/lockstep", "agent"}));
  EXPECT_EQ(command.set_environment.at("LOCKSTEP_BRIEF"), kBrief);
  EXPECT_TRUE(command.input.empty());
  EXPECT_TRUE(command.has_input) << "its end tells the agent that nobody is there any more";
}

TEST(StartCommand, pbsdsh_gets_the_machines_index_and_the_name_of_a_file) {
  const StartCommand command = command_for(StarterKind::pbsdsh);
  EXPECT_EQ(command.argv, (Words{"pbsdsh", "-n", "4", "--", "/opt/my tools/lockstep", "agent",
                                 "--brief-file", "/data/.lockstep-1-1"}));
  EXPECT_EQ(command.brief_file, "/data/.lockstep-1-1");
  EXPECT_EQ(command.brief, kBrief);
  EXPECT_FALSE(command.has_input);
  EXPECT_THROW(command_for(StarterKind::pbsdsh, {.name = "n2"}), InvalidArgument);
}

TEST(StartCommand, a_secret_is_never_among_the_arguments) {
  for (const StarterKind kind :
       {StarterKind::ssh, StarterKind::srun, StarterKind::pbsdsh, StarterKind::local}) {
    for (const std::string& word : command_for(kind).argv) {
      EXPECT_EQ(word.find("hush"), std::string::npos) << word;
    }
  }
}

TEST(StartCommand, options_of_ssh_are_read_as_a_shell_does) {
  EXPECT_EQ(shell_words("-p 22  -o 'A=b c' -i \"my \\\"key\\\"\" a\\ b ''", "--ssh-options"),
            (Words{"-p", "22", "-o", "A=b c", "-i", "my \"key\"", "a b", ""}));
  EXPECT_EQ(shell_words("", "x"), Words{});
  EXPECT_THROW(shell_words("-i 'key", "--ssh-options"), InvalidArgument);
}
