#include "etcd/etcd_api.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep {

TEST(EtcdApi, requests_are_what_the_gateway_takes) {
  EXPECT_EQ(range_of_prefix("/a/").body, R"({"key":"L2Ev","range_end":"L2Ew"})");
  EXPECT_EQ(grant_lease(3).body, R"({"TTL":"3"})");
  EXPECT_EQ(keep_lease_alive(7).body, R"({"ID":"7"})");
  const EtcdRequest put = put_if({{"a", 5}}, {{"b", "c", 9}});
  EXPECT_EQ(put.path, "/v3/kv/txn");
  EXPECT_EQ(put.body,
            R"({"compare":[{"key":"YQ==","mod_revision":"5","result":"EQUAL","target":"MOD"}],)"
            R"("success":[{"request_put":{"key":"Yg==","lease":"9","value":"Yw=="}}]})");
}

TEST(EtcdApi, a_login_gives_a_token_that_fits_into_a_line) {
  EXPECT_EQ(log_in("u", "p").path, "/v3/auth/authenticate");
  EXPECT_EQ(log_in("u", "p").body, R"({"name":"u","password":"p"})");
  EXPECT_EQ(read_token(R"({"header":{},"token":"aBc.12"})"), "aBc.12");
  EXPECT_THROW(read_token(R"({"header":{}})"), InvalidArgument);
  EXPECT_THROW(read_token(R"({"token":"a\r\nHost: b"})"), InvalidArgument);
  EXPECT_TRUE(asks_for_login(401, ""));
  EXPECT_TRUE(asks_for_login(400, R"({"message":"etcdserver: revision of auth store is old"})"));
  EXPECT_FALSE(asks_for_login(503, "{}"));
}

TEST(EtcdApi, answers_are_read) {
  const auto values = read_range(
      R"({"header":{},"kvs":[{"key":"YQ==","value":"Yg==","mod_revision":"12"}],"count":"1"})");
  EXPECT_EQ(values, (std::vector<EtcdValue>{{"a", "b", 12}}));
  EXPECT_TRUE(read_range(R"({"header":{}})").empty());
  EXPECT_EQ(read_granted_lease(R"({"header":{},"ID":"7587862094829","TTL":"3"})"), 7587862094829);
  EXPECT_EQ(read_kept_lease(R"({"result":{"ID":"7","TTL":"3"}})"), 3);
  EXPECT_EQ(read_kept_lease(R"({"result":{"ID":"7"}})"), 0);  // it is gone
  EXPECT_TRUE(read_txn(R"({"header":{"revision":"8"},"succeeded":true})").succeeded);
  EXPECT_EQ(read_txn(R"({"header":{"revision":"8"},"succeeded":true})").revision, 8);
  EXPECT_FALSE(read_txn(R"({"header":{"revision":"8"}})").succeeded);
  EXPECT_EQ(read_error(503, R"({"error":"etcdserver: no leader","code":14})"),
            "it answers 503: etcdserver: no leader");
  EXPECT_EQ(read_error(500, "<html>"), "it answers 500");
}

TEST(EtcdApi, what_etcd_would_not_say_is_refused) {
  EXPECT_THROW(read_range("[]"), InvalidArgument);
  EXPECT_THROW(read_range(R"({"kvs":3})"), InvalidArgument);
  EXPECT_THROW(read_range(R"({"kvs":[3]})"), InvalidArgument);
  EXPECT_THROW(read_range(R"({"kvs":[{"key":"?"}]})"), InvalidArgument);
  EXPECT_THROW(read_range(R"({"kvs":[{"mod_revision":"x"}]})"), InvalidArgument);
  EXPECT_THROW(read_granted_lease("{}"), InvalidArgument);
  EXPECT_THROW(read_kept_lease(R"({"error":{}})"), InvalidArgument);
  EXPECT_THROW(read_txn("{}"), InvalidArgument);
}

}  // namespace lockstep
