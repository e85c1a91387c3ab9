#include "cluster/export_list.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::Environment;
using lockstep::exported_variables;
using lockstep::InvalidArgument;
using Variables = Environment::Variables;

namespace {

const Environment kHere({{"PATH", "/bin"},
                         {"PYTHONPATH", "/src"},
                         {"NCCL_DEBUG", "INFO"},
                         {"LOCKSTEP_STORE", "local"},
                         {"LOCKSTEP_SECRET", "hush"},
                         {"LOCKSTEP_SECRET_FILE", "f"},
                         {"MY_DATA", "/data"},
                         {"MY_NAME", "me"},
                         {"HOSTNAME", "login1"},
                         {"SSH_AUTH_SOCK", "/tmp/agent"}});

}  // namespace

TEST(ExportList, without_a_word_what_programs_are_found_and_tuned_by_goes) {
  EXPECT_EQ(exported_variables(kHere, ""), (Variables{{"PATH", "/bin"},
                                                      {"PYTHONPATH", "/src"},
                                                      {"NCCL_DEBUG", "INFO"},
                                                      {"LOCKSTEP_STORE", "local"}}));
}

TEST(ExportList, names_values_and_prefixes_are_added) {
  const Variables found = exported_variables(kHere, "MY_*,EXTRA=a=b, PATH=/opt/bin");
  EXPECT_EQ(found.at("MY_DATA"), "/data");
  EXPECT_EQ(found.at("MY_NAME"), "me");
  EXPECT_EQ(found.at("EXTRA"), "a=b");
  EXPECT_EQ(found.at("PATH"), "/opt/bin");
}

TEST(ExportList, none_forgets_and_all_leaves_out_what_belongs_to_this_machine) {
  EXPECT_EQ(exported_variables(kHere, "NONE,MY_DATA"), (Variables{{"MY_DATA", "/data"}}));
  const Variables all = exported_variables(kHere, "ALL");
  EXPECT_TRUE(all.contains("MY_DATA"));
  EXPECT_FALSE(all.contains("HOSTNAME"));
  EXPECT_FALSE(all.contains("SSH_AUTH_SOCK"));
}

TEST(ExportList, secrets_never_go) {
  for (const char* list : {"", "ALL", "LOCKSTEP_SECRET", "LOCKSTEP_*", "LOCKSTEP_SECRET=x"}) {
    for (const auto& [name, value] : exported_variables(kHere, list)) {
      EXPECT_FALSE(name.starts_with("LOCKSTEP_SECRET")) << list;
    }
  }
}

TEST(ExportList, what_is_no_name_is_refused) {
  for (const char* list : {"A B", "=x", "A*B", "$HOME"}) {
    EXPECT_THROW(exported_variables(kHere, list), InvalidArgument) << list;
  }
}

TEST(ExportList, none_is_a_word_of_its_own) {
  EXPECT_TRUE(lockstep::exports_nothing_else("A, NONE,B"));
  EXPECT_FALSE(lockstep::exports_nothing_else("MY_NONE,NONEXISTENT=NONE"));
  EXPECT_FALSE(lockstep::exports_nothing_else(""));
}
