#include "doctor/doctor_options.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

TEST(DoctorOptions, values_follow_or_are_joined) {
  EXPECT_EQ(parse_doctor_options({"--shared-dir", "/a"}).shared_folder, "/a");
  EXPECT_EQ(parse_doctor_options({"--shared-dir=/a", "--json"}).shared_folder, "/a");
  EXPECT_TRUE(parse_doctor_options({"--json"}).json);
  EXPECT_EQ(parse_doctor_options({"-q"}).detail, ReportDetail::problems);
}

TEST(DoctorOptions, what_is_wrong_is_named) {
  EXPECT_THROW(parse_doctor_options({"--shared-dir"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--shared-dir="}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--json=yes"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"--jason"}), InvalidArgument);
  EXPECT_THROW(parse_doctor_options({"train.py"}), InvalidArgument);
}

TEST(DoctorOptions, help_names_every_option) {
  for (const char* name : {"--shared-dir", "--json", "--quiet", "--verbose"}) {
    EXPECT_NE(doctor_help().find(name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace lockstep
