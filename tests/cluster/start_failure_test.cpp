#include "cluster/start_failure.h"

#include <gtest/gtest.h>

using lockstep::ExitStatus;
using lockstep::explain_start_failure;
using lockstep::StarterKind;

namespace {

std::string explain(int code, const std::vector<std::string>& lines,
                    StarterKind kind = StarterKind::ssh) {
  return explain_start_failure(kind, "n2", "/opt/lockstep", ExitStatus{.exit_code = code}, lines);
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
}

}  // namespace

TEST(StartFailure, what_ssh_says_names_the_machine_and_the_cure) {
  expect_words(explain(255, {"ssh: Could not resolve hostname n2: Name or service not known"}),
               {"node n2", "name is not known", "/etc/hosts"});
  expect_words(explain(255, {"root@n2: Permission denied (publickey)."}),
               {"node n2", "ssh-copy-id n2"});
  expect_words(explain(255, {"Host key verification failed."}), {"ssh n2 true", "accept-new"});
  expect_words(explain(255, {"ssh: connect to host n2 port 22: Connection refused"}),
               {"no ssh server", "-p PORT"});
  expect_words(explain(255, {"kex_exchange_identification: read: Connection reset by peer"}),
               {"node n2", "ssh n2 true"});
}

TEST(StartFailure, a_program_that_is_not_there_or_for_another_machine_is_named) {
  expect_words(explain(127, {"bash: line 1: /opt/lockstep: No such file or directory"}),
               {"node n2", "'/opt/lockstep' is not there", "--remote-lockstep"});
  expect_words(explain(126, {"bash: /opt/lockstep: cannot execute binary file: Exec format error"}),
               {"another kind of machine", "--remote-lockstep"});
  expect_words(explain(1, {"/opt/lockstep: /lib/libc.so.6: version `GLIBC_2.38' not found"}),
               {"newer C library"});
}

TEST(StartFailure, a_launcher_speaks_for_itself) {
  EXPECT_EQ(explain(2, {"noise", "lockstep: no program 'train.py'"}),
            "node n2 could not be started: no program 'train.py'");
}

TEST(StartFailure, what_a_launcher_said_before_is_not_why_it_ended) {
  EXPECT_EQ(explain(1, {"lockstep (n2): OMP_NUM_THREADS is not set", "lockstep (n2): refused"}),
            "node n2 could not be started: refused");
  const std::string killed =
      explain_start_failure(StarterKind::local, "n2", "/opt/lockstep", ExitStatus{.signal = 9},
                            {"lockstep (n2): OMP_NUM_THREADS is not set"});
  expect_words(killed, {"node n2", "its launcher ended before the job began", "SIGKILL"});
}

TEST(StartFailure, without_a_word_the_exit_code_remains) {
  expect_words(explain(3, {}, StarterKind::srun), {"node n2", "srun: exit code 3"});
}
