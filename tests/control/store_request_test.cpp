#include "control/store_request.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/store_wire.h"

using lockstep::StoreCommand;
using lockstep::StoreRequest;
using lockstep::StoreRequestScanner;
namespace wire = lockstep::wire;

namespace {

struct Taken {
  StoreCommand command;
  std::vector<std::string> texts;
  std::int64_t number;
  bool operator==(const Taken&) const = default;
};

void take_all(StoreRequestScanner& scanner, std::vector<Taken>& taken) {
  while (const StoreRequest* request = scanner.next()) {
    const bool has_number = request->command == StoreCommand::add ||
                            request->command == StoreCommand::barrier ||
                            request->command == StoreCommand::ping;
    taken.push_back({request->command,
                     {request->texts.begin(), request->texts.end()},
                     has_number ? request->number : 0});
  }
}

// Requests in a stream that arrives in pieces of this many bytes.
std::vector<Taken> scan(const std::string& stream, std::size_t piece) {
  StoreRequestScanner scanner;
  std::vector<Taken> taken;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    scanner.feed(std::string_view(stream).substr(at, piece));
    take_all(scanner, taken);
  }
  EXPECT_EQ(scanner.problem(), "");
  EXPECT_EQ(scanner.pending_bytes(), 0u);
  return taken;
}

// What is wrong with a stream; empty if nothing is.
std::string problem_of(const std::string& stream) {
  StoreRequestScanner scanner;
  std::vector<Taken> taken;
  scanner.feed(stream);
  take_all(scanner, taken);
  return scanner.problem();
}

}  // namespace

TEST(StoreRequestScanner, returns_every_command_however_the_stream_is_cut) {
  const std::string long_value(300, 'v');
  const std::string stream =
      wire::validate() + wire::ping(4242) + wire::request(StoreCommand::set, {"/k", long_value}) +
      wire::request(StoreCommand::compare_set, {"/k", "", "new"}) +
      wire::request(StoreCommand::get, {"/k"}) + wire::request(StoreCommand::add, "/n", -7) +
      wire::list(StoreCommand::check, {"/a", "/b"}) + wire::list(StoreCommand::wait, {}) +
      wire::command(StoreCommand::number_of_keys) + wire::request(StoreCommand::delete_key, {""}) +
      wire::request(StoreCommand::append, {"/k", ""}) +
      wire::list(StoreCommand::multi_get, {"/k"}) +
      wire::list(StoreCommand::multi_set, {"/a", "1", "/b", "2"}) +
      wire::command(StoreCommand::cancel_wait) +
      wire::request(StoreCommand::queue_push, {"/q", "e"}) +
      wire::request(StoreCommand::queue_pop, {"/q"}) +
      wire::request(StoreCommand::queue_length, {"/q"}) + wire::command(StoreCommand::list_keys) +
      wire::request(StoreCommand::barrier, "/bar", 2);
  const std::vector<Taken> expected = {
      {StoreCommand::ping, {}, 4242},
      {StoreCommand::set, {"/k", long_value}, 0},
      {StoreCommand::compare_set, {"/k", "", "new"}, 0},
      {StoreCommand::get, {"/k"}, 0},
      {StoreCommand::add, {"/n"}, -7},
      {StoreCommand::check, {"/a", "/b"}, 0},
      {StoreCommand::wait, {}, 0},
      {StoreCommand::number_of_keys, {}, 0},
      {StoreCommand::delete_key, {""}, 0},
      {StoreCommand::append, {"/k", ""}, 0},
      {StoreCommand::multi_get, {"/k"}, 0},
      {StoreCommand::multi_set, {"/a", "1", "/b", "2"}, 0},
      {StoreCommand::cancel_wait, {}, 0},
      {StoreCommand::queue_push, {"/q", "e"}, 0},
      {StoreCommand::queue_pop, {"/q"}, 0},
      {StoreCommand::queue_length, {"/q"}, 0},
      {StoreCommand::list_keys, {}, 0},
      {StoreCommand::barrier, {"/bar"}, 2},
  };
  for (std::size_t piece = 1; piece <= stream.size(); ++piece) {
    ASSERT_EQ(scan(stream, piece), expected) << "pieces of " << piece;
  }
}

TEST(StoreRequestScanner, insists_on_validate_with_the_first_byte) {
  EXPECT_NE(problem_of("G").find("does not speak TCPStore's protocol"), std::string::npos);
  EXPECT_NE(problem_of(wire::ping(1)).find("first byte is 13"), std::string::npos);
}

TEST(StoreRequestScanner, refuses_a_wrong_magic_number) {
  EXPECT_NE(problem_of(std::string("\0\1\2\3\4", 5)).find("VALIDATE with"), std::string::npos);
}

TEST(StoreRequestScanner, refuses_a_second_validate) {
  EXPECT_EQ(problem_of(wire::validate() + wire::validate()), "a second VALIDATE");
}

TEST(StoreRequestScanner, refuses_commands_that_do_not_exist) {
  EXPECT_EQ(problem_of(wire::validate() + '\x13'), "command 19 does not exist");
  EXPECT_EQ(problem_of(wire::validate() + '\xff'), "command 255 does not exist");
}

TEST(StoreRequestScanner, says_nothing_more_once_it_has_refused) {
  StoreRequestScanner scanner;
  scanner.feed("x");
  EXPECT_EQ(scanner.next(), nullptr);
  scanner.feed(wire::validate() + wire::ping(1));
  EXPECT_EQ(scanner.next(), nullptr);
  EXPECT_FALSE(scanner.validated());
  EXPECT_EQ(scanner.pending_bytes(), 0u);
}

TEST(StoreRequestScanner, takes_keys_and_values_up_to_the_limit_and_no_longer_ones) {
  const std::string key(8192, 'k'), value(8 << 20, 'v');
  EXPECT_EQ(problem_of(wire::validate() + wire::request(StoreCommand::set, {key, value})), "");
  EXPECT_EQ(problem_of(wire::validate() + wire::request(StoreCommand::set, {key + 'k', "v"})),
            "SET with a key of 8193 bytes; the limit is 8192");
  EXPECT_EQ(problem_of(wire::validate() + wire::request(StoreCommand::append, {"/k", value + 'v'})),
            "APPEND with a value of 8388609 bytes; the limit is 8388608");
}

TEST(StoreRequestScanner, refuses_a_length_before_the_bytes_have_come) {
  const auto huge = wire::integer<std::uint64_t>(~0ull);
  for (const std::string& start :
       {wire::command(StoreCommand::set), wire::command(StoreCommand::check),
        wire::command(StoreCommand::multi_set),
        wire::command(StoreCommand::set) + wire::text("/k")}) {
    EXPECT_NE(problem_of(wire::validate() + start + huge), "");
  }
}

TEST(StoreRequestScanner, takes_131072_keys_and_no_more) {
  const std::vector<std::string_view> keys(128 * 1024, "/k");
  EXPECT_EQ(problem_of(wire::validate() + wire::list(StoreCommand::check, keys)), "");
  EXPECT_EQ(problem_of(wire::validate() + wire::command(StoreCommand::wait) +
                       wire::integer<std::uint64_t>(keys.size() + 1)),
            "WAIT of 131073 keys; the limit is 131072");
}

TEST(StoreRequestScanner, bounds_a_request_of_many_allowed_values) {
  StoreRequestScanner scanner({.request_bytes = 1000});
  scanner.feed(wire::validate());
  const std::string value(400, 'v');
  scanner.feed(wire::list(StoreCommand::multi_set, {"/a", value, "/b", value, "/c", value}));
  EXPECT_EQ(scanner.next(), nullptr);
  EXPECT_EQ(scanner.problem(), "MULTI_SET of more than 1000 bytes in all");
}

TEST(StoreRequestScanner, gives_back_the_memory_of_large_requests) {
  StoreRequestScanner scanner;
  scanner.feed(wire::validate());
  EXPECT_EQ(scanner.next(), nullptr);
  const std::vector<std::string_view> keys(100'000, "/k");
  scanner.feed(wire::list(StoreCommand::check, keys));
  ASSERT_NE(scanner.next(), nullptr);
  EXPECT_GT(scanner.held_bytes(), 1'000'000u);
  scanner.feed(wire::ping(1));
  ASSERT_NE(scanner.next(), nullptr);
  EXPECT_LT(scanner.held_bytes(), 1'000u);
}

TEST(StoreRequestScanner, holds_little_for_a_client_that_never_pauses) {
  StoreRequestScanner scanner;
  const std::string set = wire::request(StoreCommand::set, {"/k", std::string(1000, 'v')});
  scanner.feed(wire::validate() + set.substr(0, 500));
  // Every piece ends in the middle of a request.
  for (int i = 0; i < 10'000; ++i) {
    scanner.feed(set.substr(500) + set.substr(0, 500));
    ASSERT_NE(scanner.next(), nullptr);
    ASSERT_EQ(scanner.next(), nullptr);
  }
  EXPECT_LT(scanner.held_bytes(), 10'000u);
}
