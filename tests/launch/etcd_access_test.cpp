#include "launch/etcd_access.h"

#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {
namespace {

const Environment kNothingSet(Environment::Variables{});
const Environment kEtcdPassword(Environment::Variables{{"LOCKSTEP_ETCD_PASSWORD", "x"}});

RunOptions with_conf(const std::map<std::string, std::string>& conf,
                     const std::string& endpoint = "etcd1:2379") {
  RunOptions options;
  options.rdzv_backend = "etcd";
  options.rdzv_endpoint = endpoint;
  options.rdzv_conf = conf;
  return options;
}

std::string refusal_of_access(const RunOptions& options,
                              const Environment& environment = kNothingSet) {
  try {
    etcd_access(options, environment);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(EtcdAccess, NothingSaidIsPlainHttp) {
  const EtcdAccess access = etcd_access(with_conf({}), kEtcdPassword);
  EXPECT_FALSE(access.tls);
  EXPECT_EQ(access.user, "");
  EXPECT_EQ(access.password, "");
}

TEST(EtcdAccess, BothOfTorchrunsNamesAreKnown) {
  const EtcdAccess one =
      etcd_access(with_conf({{"protocol", "https"}, {"cacert", "a"}, {"cert", "b"}, {"key", "c"}}),
                  kNothingSet);
  const EtcdAccess other = etcd_access(
      with_conf(
          {{"protocol", "https"}, {"ca_cert", "a"}, {"ssl_cert", "b"}, {"ssl_cert_key", "c"}}),
      kNothingSet);
  for (const EtcdAccess* each : {&one, &other}) {
    EXPECT_TRUE(each->tls);
    EXPECT_EQ(each->trust.authorities, "a");
    EXPECT_EQ(each->trust.certificate, "b");
    EXPECT_EQ(each->trust.key, "c");
  }
}

TEST(EtcdAccess, ContradictionsAreNamed) {
  EXPECT_NE(refusal_of_access(with_conf({{"cacert", "a"}})).find("protocol=https"),
            std::string::npos);
  EXPECT_NE(refusal_of_access(with_conf({{"protocol", "https"}, {"cert", "a"}})).find("give both"),
            std::string::npos);
  EXPECT_NE(
      refusal_of_access(with_conf({{"protocol", "https"}, {"user", "u"}})).find("no password"),
      std::string::npos);
  EXPECT_NE(refusal_of_access(with_conf({{"password_file", "f"}})).find("no user"),
            std::string::npos);
}

TEST(EtcdAccess, APasswordCrossesNoNetworkInTheClear) {
  const std::string text =
      refusal_of_access(with_conf({{"user", "u"}}, "127.0.0.1:1,etcd1:2379"), kEtcdPassword);
  EXPECT_NE(text.find("etcd1:2379"), std::string::npos) << text;
  EXPECT_NE(text.find("protocol=https"), std::string::npos) << text;
  EXPECT_EQ(etcd_access(with_conf({{"user", "u"}}, "localhost:1,[::1]:2"), kEtcdPassword).password,
            "x");
  EXPECT_EQ(etcd_access(with_conf({{"user", "u"}, {"protocol", "https"}}), kEtcdPassword).user,
            "u");
}

TEST(EtcdAccess, AFileWithThePasswordMustBeClosedToOthers) {
  std::string path = std::filesystem::temp_directory_path() / "password_XXXXXX";
  const int file = ::mkstemp(path.data());
  ASSERT_GE(file, 0);
  ::close(file);
  std::ofstream(path) << "short\n";
  const RunOptions options =
      with_conf({{"user", "u"}, {"protocol", "https"}, {"password_file", path}});
  EXPECT_EQ(etcd_access(options, kNothingSet).password, "short");
  ::chmod(path.c_str(), 0644);
  EXPECT_NE(refusal_of_access(options).find("open to others"), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace lockstep
