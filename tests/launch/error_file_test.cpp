#include "launch/error_file.h"

#include <sys/stat.h>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/core/temporary_folder.h"

using lockstep::error_file_for_parent;
using lockstep::ErrorFile;
using lockstep::parse_error_file;
using lockstep::read_error_file;
using lockstep::testing::TemporaryFolder;

namespace {

constexpr const char* kPython =
    R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "Traceback\n  x",)"
    R"( "timestamp": "1700000000"}}})";

void put(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace

TEST(ErrorFile, pythons_form_is_understood) {
  const ErrorFile error = parse_error_file(kPython);
  EXPECT_EQ(error.malformed, "");
  EXPECT_EQ(error.message, "ValueError: no");
  EXPECT_EQ(error.callstack, "Traceback\n  x");
  EXPECT_EQ(error.timestamp, 1700000000);
  EXPECT_EQ(error.error_code, std::nullopt);
  EXPECT_EQ(error.json, kPython);
}

TEST(ErrorFile, a_plain_message_has_its_time_at_the_top) {
  const ErrorFile error = parse_error_file(R"({"message": "gone", "timestamp": 12})");
  EXPECT_EQ(error.malformed, "");
  EXPECT_EQ(error.message, "gone");
  EXPECT_EQ(error.timestamp, 12);
}

TEST(ErrorFile, parts_of_the_wrong_kind_are_as_good_as_missing) {
  const ErrorFile error = parse_error_file(
      R"({"message": {"message": 7, "errorCode": "x", "extraInfo": {"timestamp": [1]}}})");
  EXPECT_EQ(error.malformed, "");
  EXPECT_EQ(error.message, "");
  EXPECT_EQ(error.timestamp, std::nullopt);
  EXPECT_EQ(error.error_code, std::nullopt);
}

TEST(ErrorFile, what_is_malformed_says_how) {
  EXPECT_EQ(parse_error_file("").malformed, "it is empty");
  EXPECT_EQ(parse_error_file("{\"message\": ").malformed, "it is not JSON");
  EXPECT_EQ(parse_error_file("{\"message\": \"\xff\"}").malformed, "it is not JSON");
  EXPECT_EQ(parse_error_file("[1, 2]").malformed, "it has no field 'message'");
  EXPECT_EQ(parse_error_file("{}").malformed, "it has no field 'message'");
  EXPECT_EQ(parse_error_file(R"({"message": 3})").malformed,
            "its 'message' is neither a text nor an object");
  EXPECT_EQ(parse_error_file(std::string(5 << 20, 'x')).malformed,
            "it is longer than 4194304 bytes");
}

TEST(ErrorFile, a_million_open_brackets_do_not_exhaust_the_stack) {
  const std::string deep =
      R"({"message": )" + std::string(1000000, '[') + std::string(1000000, ']') + "}";
  EXPECT_EQ(parse_error_file(deep).malformed, "it is not JSON");
}

TEST(ErrorFile, a_huge_message_is_cut) {
  const ErrorFile error = parse_error_file(R"({"message": ")" + std::string(1 << 20, 'x') + "\"}");
  EXPECT_LE(error.message.size(), 16u << 10);
  EXPECT_EQ(error.json, "");
}

TEST(ErrorFile, a_missing_file_and_the_null_device_hold_no_error) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_error_file(folder / "error.json"), std::nullopt);
  EXPECT_EQ(read_error_file("/dev/null"), std::nullopt);
  EXPECT_EQ(read_error_file(""), std::nullopt);
}

TEST(ErrorFile, a_file_is_read_with_its_path) {
  const TemporaryFolder folder;
  put(folder / "error.json", kPython);
  const auto error = read_error_file(folder / "error.json");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->path, folder / "error.json");
  EXPECT_EQ(error->message, "ValueError: no");
}

TEST(ErrorFile, a_folder_or_a_named_pipe_in_its_place_is_reported_and_does_not_block) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_error_file(folder.path().string())->malformed, "it is not a plain file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(read_error_file(folder / "pipe")->malformed, "it is not a plain file");
}

TEST(ErrorFile, the_parent_gets_the_same_file_with_the_error_code_in_it) {
  auto expected = nlohmann::json::parse(kPython);
  expected["message"]["errorCode"] = -9;
  EXPECT_EQ(nlohmann::json::parse(error_file_for_parent(parse_error_file(kPython), -9)), expected);
}

TEST(ErrorFile, a_plain_message_is_passed_on_unchanged_as_torchrun_does) {
  const std::string plain = R"({"message": "gone", "timestamp": 12, "more": [1]})";
  EXPECT_EQ(nlohmann::json::parse(error_file_for_parent(parse_error_file(plain), 3)),
            nlohmann::json::parse(plain));
}

TEST(ErrorFile, a_file_too_long_to_keep_reaches_the_parent_in_its_parts) {
  const ErrorFile error = parse_error_file(R"({"message": ")" + std::string(1 << 20, 'x') + "\"}");
  const auto json = nlohmann::json::parse(error_file_for_parent(error, 3));
  EXPECT_EQ(json["message"]["errorCode"], 3);
  EXPECT_EQ(json["message"]["message"], error.message);
  EXPECT_TRUE(json["message"]["extraInfo"]["timestamp"].is_string());
}
