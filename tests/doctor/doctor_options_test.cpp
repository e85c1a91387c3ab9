#include "doctor/doctor_options.h"

#include <gtest/gtest.h>

#include "doctor/doctor_command.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

TEST(DoctorOptions, values_follow_or_are_joined) {
  EXPECT_EQ(parse_doctor_options({"--shared-dir", "/a"}).shared_folder, "/a");
  EXPECT_EQ(parse_doctor_options({"--shared-dir=/a", "--json"}).shared_folder, "/a");
  EXPECT_TRUE(parse_doctor_options({"--json"}).json);
  EXPECT_EQ(parse_doctor_options({"-q"}).detail, ReportDetail::problems);
}

TEST(DoctorOptions, several_nodes_need_a_place_to_meet) {
  const DoctorOptions options =
      parse_doctor_options({"--nnodes=3", "--rdzv_endpoint", "n1:29400", "--timeout", "1.5"});
  EXPECT_EQ(options.nodes, 3);
  EXPECT_EQ(options.endpoint, "n1:29400");
  EXPECT_EQ(options.join_limit, std::chrono::milliseconds(1500));
  EXPECT_THROW(parse_doctor_options({"--nnodes", "2"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--nnodes", "0"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--rdzv-endpoint", "n1"}), InvalidArgument);
}

TEST(DoctorOptions, links_are_encrypted_where_those_of_jobs_are) {
  EXPECT_FALSE(parse_doctor_options({}).tls);
  EXPECT_TRUE(parse_doctor_options({"--tls"}).tls);
  const auto by_variable = [](const std::string& value) {
    return parse_doctor_options({}, Environment(Environment::Variables{{"LOCKSTEP_TLS", value}}))
        .tls;
  };
  EXPECT_TRUE(by_variable("1"));
  EXPECT_FALSE(by_variable("0"));
  EXPECT_THROW(parse_doctor_options({"--tls", "--insecure"}), InvalidArgument);
}

TEST(DoctorOptions, a_program_for_the_small_job_asks_for_it) {
  EXPECT_FALSE(parse_doctor_options({}).smoke);
  EXPECT_TRUE(parse_doctor_options({"--smoke"}).smoke);
  EXPECT_TRUE(parse_doctor_options({"--smoke-program=./mine"}).smoke);
}

TEST(DoctorOptions, machines_to_start_doctors_on_are_those_of_lockstep_run) {
  const DoctorOptions options = parse_doctor_options(
      {"--hosts", "a,b", "--ssh-options=-p 22", "--prologue", "module load x"});
  EXPECT_TRUE(options.seeks_hosts);
  EXPECT_EQ(options.host_words, (std::vector<std::string>{"--hosts=a,b", "--ssh-options=-p 22",
                                                          "--prologue=module load x"}));
  EXPECT_EQ(options.prologue, "module load x");
  EXPECT_TRUE(parse_doctor_options({"--nnodes=auto"}).seeks_hosts);
  EXPECT_THROW(parse_doctor_options({"--ssh-options=-p 22"}), InvalidArgument);
}

TEST(DoctorOptions, what_is_wrong_is_named) {
  EXPECT_THROW(parse_doctor_options({"--shared-dir"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--shared-dir="}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--json=yes"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--jason"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"train.py"}), InvalidArgument);
}

TEST(DoctorOptions, help_names_every_option) {
  for (const char* name :
       {"--shared-dir", "--json", "--quiet", "--verbose", "--nnodes", "--rdzv-endpoint",
        "--secret-file", "--insecure", "--timeout", "--all-pairs", "--hosts", "--hostfile",
        "--starter", "--ssh-options", "--prologue", "--smoke", "--smoke-program"}) {
    EXPECT_NE(doctor_help().find(name), std::string::npos) << name;
  }
}

TEST(DoctorOptions, completions_have_every_option_of_the_help) {
  const std::string words = doctor_option_words();
  EXPECT_NE(words.find("--json"), std::string::npos);
  EXPECT_NE(words.find("--hosts="), std::string::npos);
  EXPECT_EQ(words.find("--agent"), std::string::npos);
  std::istringstream list(words);
  for (std::string word; list >> word;) {
    EXPECT_NE(doctor_help().find(word.substr(0, word.find('='))), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace lockstep
