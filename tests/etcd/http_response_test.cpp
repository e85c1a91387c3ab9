#include "etcd/http_response.h"

#include <gtest/gtest.h>

#include "etcd/base64.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

/// In pieces of this many bytes.
HttpResponse read(const std::string& text, std::size_t piece) {
  HttpResponse response;
  for (std::size_t at = 0; at < text.size(); at += piece) response.take(text.substr(at, piece));
  return response;
}

}  // namespace

TEST(HttpResponse, a_body_with_a_length_comes_in_any_pieces) {
  const std::string text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello and more";
  for (const std::size_t piece : {1u, 3u, 1000u}) {
    const HttpResponse response = read(text, piece);
    ASSERT_TRUE(response.complete());
    EXPECT_EQ(response.status(), 200);
    EXPECT_EQ(response.body(), "hello");
  }
}

TEST(HttpResponse, a_body_may_come_in_chunks) {
  const std::string text =
      "HTTP/1.1 404 Not Found\r\ntransfer-encoding: Chunked\r\n\r\n"
      "5\r\nhello\r\nA;name=x\r\n, world!!!\r\n0\r\nTrailer: 1\r\n\r\n";
  for (const std::size_t piece : {1u, 7u, 1000u}) {
    const HttpResponse response = read(text, piece);
    ASSERT_TRUE(response.complete());
    EXPECT_EQ(response.status(), 404);
    EXPECT_EQ(response.body(), "hello, world!!!");
  }
}

TEST(HttpResponse, a_body_without_a_length_ends_with_the_connection) {
  HttpResponse response = read("HTTP/1.0 200 OK\r\n\r\nall of it", 4);
  EXPECT_FALSE(response.complete());
  response.take_end();
  EXPECT_TRUE(response.complete());
  EXPECT_EQ(response.body(), "all of it");
}

TEST(HttpResponse, a_connection_that_ends_too_early_is_no_response) {
  for (const char* text :
       {"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"}) {
    HttpResponse response = read(text, 1000);
    EXPECT_THROW(response.take_end(), InvalidArgument) << text;
  }
}

TEST(HttpResponse, what_is_no_response_or_too_long_is_refused) {
  const std::string head = "HTTP/1.1 200 OK\r\n";
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  for (const std::string& text :
       {std::string("SSH-2.0-OpenSSH\r\n\r\n"), std::string("HTTP/1.1 abc OK\r\n\r\n"),
        std::string("HTTP/1.1 100 Continue\r\n\r\n"), head + "no name\r\n\r\n",
        head + "Content-Length: -1\r\n\r\n", head + "Content-Length: 99999999999\r\n\r\n",
        head + "Transfer-Encoding: gzip\r\n\r\n", chunked + "x\r\n", chunked + "1\r\nab\r\n",
        chunked + "ffffffff\r\n", head + std::string(HttpResponse::kMaxHeadBytes + 1, 'a'),
        chunked + std::string(5000, '0')}) {
    EXPECT_THROW(read(text, 1 << 20), InvalidArgument) << text.substr(0, 80);
  }
}

TEST(Base64, both_ways) {
  for (const auto& [bytes, text] : std::vector<std::pair<std::string, std::string>>{
           {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}}) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(from_base64(to_base64(all)), all);
}

TEST(Base64, other_texts_are_none) {
  for (const char* text : {"Zg", "Zg=", "Z===", "Zh==", "Zm 9", "=Zg=", "Zg==Zg==", "Zm-_"}) {
    EXPECT_FALSE(from_base64(text)) << text;
  }
}

}  // namespace lockstep
