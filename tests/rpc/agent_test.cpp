#include "lockstep/rpc.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <numeric>
#include <thread>

#include "tests/rpc/two_agents.h"

namespace lockstep::rpc {
namespace {

using namespace std::chrono_literals;

enum class Colour : std::uint8_t { red = 1, blue = 7 };

struct Sample {
  double reward = 0;
  std::vector<float> state;
  std::optional<std::string> note;
};

class Counter {
 public:
  explicit Counter(std::int64_t start) : value_(start) { ++alive; }
  ~Counter() { --alive; }
  std::int64_t add(std::int64_t amount) {
    const std::int64_t before = value_;
    std::this_thread::yield();  // a second call at the same time would be lost
    value_ = before + amount;
    return value_;
  }
  std::string who(const Caller& caller) const { return caller.name; }
  static inline std::atomic<int> alive = 0;

 private:
  std::int64_t value_;
};

}  // namespace

template <>
struct Fields<Sample> {
  static constexpr const char* name = "Sample";
  static auto of(auto& sample) { return std::tie(sample.reward, sample.state, sample.note); }
};

namespace {

Blob blob_of(std::size_t bytes, int seed) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  for (std::size_t index = 0; index < bytes; ++index) {
    (*memory)[index] = static_cast<std::byte>(index * 7 + static_cast<std::size_t>(seed));
  }
  return {.data = memory->data(), .bytes = bytes, .owner = memory};
}

bool equal(const Blob& one, const Blob& other) {
  return one.bytes == other.bytes &&
         (one.bytes == 0 || std::memcmp(one.data, other.data, one.bytes) == 0);
}

template <typename T>
T echo(Agent& agent, const T& value) {
  return agent.call<T>({"server", Codec<T>::name()}, value).get();
}

template <typename T>
void serve_echo(Agent& agent) {
  agent.serve(Codec<T>::name(), [](T value) { return value; });
}

// All of it over unix sockets with and without shared memory, and over TCP protected in each way.
class EachTransport : public ::testing::TestWithParam<const char*> {
 protected:
  EachTransport() : agents(GetParam()) {}
  TwoAgents agents;
  Agent& server = *agents.server;
  Agent& caller = *agents.caller;
};
INSTANTIATE_TEST_SUITE_P(, EachTransport,
                         testing::Values("shared", "unix", "sealed", "encrypted", "handshake"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(EachTransport, values_of_all_types_come_back_as_they_were) {
  serve_echo<bool>(server);
  serve_echo<std::int8_t>(server);
  serve_echo<double>(server);
  serve_echo<std::string>(server);
  serve_echo<Colour>(server);
  serve_echo<std::vector<std::string>>(server);
  serve_echo<std::vector<bool>>(server);
  serve_echo<std::vector<std::vector<float>>>(server);
  serve_echo<std::map<std::string, std::optional<int>>>(server);
  serve_echo<std::tuple<int, std::string, std::pair<bool, float>>>(server);
  serve_echo<std::tuple<>>(server);
  EXPECT_TRUE(echo(caller, true));
  EXPECT_EQ(echo(caller, std::int8_t{-5}), -5);
  EXPECT_EQ(echo(caller, 0.1), 0.1);
  EXPECT_EQ(echo(caller, std::string("a\0b", 3)), std::string("a\0b", 3));
  EXPECT_EQ(echo(caller, Colour::blue), Colour::blue);
  EXPECT_EQ(echo(caller, std::vector<std::string>{"", "x"}), (std::vector<std::string>{"", "x"}));
  EXPECT_EQ(echo(caller, std::vector<bool>{true, false}), (std::vector<bool>{true, false}));
  const std::vector<std::vector<float>> nested{{1, 2}, {}, {3}};
  EXPECT_EQ(echo(caller, nested), nested);
  const std::map<std::string, std::optional<int>> map{{"a", 1}, {"b", std::nullopt}};
  EXPECT_EQ(echo(caller, map), map);
  const std::tuple<int, std::string, std::pair<bool, float>> tuple{1, "two", {true, 3.5f}};
  EXPECT_EQ(echo(caller, tuple), tuple);
  echo(caller, std::tuple<>{});
}

TEST_P(EachTransport, a_struct_travels_by_its_fields) {
  serve_echo<Sample>(server);
  const Sample got = echo(caller, Sample{.reward = 2.5, .state = {1, 2}, .note = "good"});
  EXPECT_EQ(got.reward, 2.5);
  EXPECT_EQ(got.state, (std::vector<float>{1, 2}));
  EXPECT_EQ(got.note, "good");
}

TEST_P(EachTransport, blobs_of_all_sizes_come_back_as_they_were) {
  serve_echo<std::vector<Blob>>(server);
  for (const std::size_t bytes : {0u, 1u, 1000u, 16384u, 65536u, 70000u, 3000000u}) {
    const Blob sent = blob_of(bytes, 1);
    const auto got = echo(caller, std::vector<Blob>{sent, blob_of(3, 2), sent});
    ASSERT_EQ(got.size(), 3u);
    EXPECT_TRUE(equal(got[0], sent) && equal(got[1], blob_of(3, 2)) && equal(got[2], sent))
        << bytes;
  }
}

TEST_P(EachTransport, a_long_list_of_numbers_comes_in_pieces) {
  serve_echo<std::vector<std::int64_t>>(server);
  std::vector<std::int64_t> numbers(500000);
  std::iota(numbers.begin(), numbers.end(), 0);
  EXPECT_EQ(echo(caller, numbers), numbers);
}

TEST_P(EachTransport, small_calls_pass_large_ones) {
  std::promise<void> small_done;
  server.serve("large", [](Blob blob) { return blob.bytes; });
  server.serve("small", [](int value) { return value; });
  const Blob large = blob_of(6 << 20, 1);
  std::vector<Future<std::size_t>> slow;
  for (int count = 0; count < 3; ++count) {
    slow.push_back(caller.call<std::size_t>({"server", "large"}, large));
  }
  std::vector<Future<int>> quick;
  for (int count = 0; count < 50; ++count) {
    quick.push_back(caller.call<int>({"server", "small"}, count));
  }
  for (int count = 0; count < 50; ++count) {
    EXPECT_EQ(quick[static_cast<std::size_t>(count)].get(), count);
  }
  for (const auto& each : slow) EXPECT_EQ(each.get(), large.bytes);
}

TEST_P(EachTransport, answers_come_in_any_order) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  server.serve("wait", [released](int value) {
    released.wait();
    return value;
  });
  server.serve("go", [](int value) { return value; });
  const auto first = caller.call<int>({"server", "wait"}, 1);
  const auto second = caller.call<int>({"server", "go"}, 2);
  EXPECT_EQ(second.get(), 2);
  EXPECT_FALSE(first.done());
  release.set_value();
  EXPECT_EQ(first.get(), 1);
}

TEST_P(EachTransport, what_a_function_throws_is_thrown_to_its_caller) {
  server.serve("fail", [](std::string text) -> int { throw std::out_of_range(text); });
  server.serve("odd", [] { throw 5; });
  try {
    caller.call<int>({"server", "fail"}, "too far").get();
    FAIL();
  } catch (const RemoteException& error) {
    EXPECT_EQ(error.type(), "std::out_of_range");
    EXPECT_EQ(error.remote_message(), "too far");
    EXPECT_EQ(error.peer(), "server");
    EXPECT_STREQ(error.what(), "rpc: 'server', function 'fail' threw std::out_of_range: too far");
  }
  EXPECT_THROW(caller.call({"server", "odd"}).get(), RemoteException);
}

TEST_P(EachTransport, wrong_names_and_types_are_told) {
  server.serve("add", [](std::int64_t a, float b) { return static_cast<float>(a) + b; });
  EXPECT_THROW(caller.call<int>({"server", "sub"}).get(), NoSuchFunction);
  try {
    caller.call<float>({"server", "add"}, 1, 2.0f).get();
    FAIL();
  } catch (const WrongTypes& error) {
    EXPECT_EQ(error.called(), "i32,f32->f32");
    EXPECT_EQ(error.served(), "i64,f32->f32");
  }
  EXPECT_THROW(caller.call<double>({"server", "add"}, std::int64_t{1}, 2.0f).get(), WrongTypes);
  EXPECT_EQ(caller.call<float>({"server", "add"}, std::int64_t{1}, 2.0f).get(), 3.0f);
}

TEST_P(EachTransport, a_late_answer_is_dropped) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  server.serve("wait", [released] {
    released.wait();
    return blob_of(1 << 20, 3);
  });
  server.serve("go", [](Blob blob) { return blob; });
  const Blob sent = blob_of(1 << 20, 4);
  caller.call<Blob>({"server", "go"}, sent).get();  // connected before time counts
  EXPECT_THROW(caller.call<Blob>({"server", "wait", 20ms}).get(), CallTimeout);
  release.set_value();
  for (int count = 0; count < 20; ++count) {
    EXPECT_TRUE(equal(caller.call<Blob>({"server", "go"}, sent).get(), sent));
  }
}

TEST_P(EachTransport, objects_live_as_long_as_they_are_held) {
  server.serve_class<Counter>("Counter", [](auto& each) {
    each.template constructor<std::int64_t>()
        .method("add", &Counter::add)
        .method("who", &Counter::who);
  });
  {
    const auto counter = caller.create<Counter>({"server", "Counter"}, std::int64_t{5});
    const auto same = counter;
    EXPECT_EQ(Counter::alive, 1);
    std::vector<Future<std::int64_t>> calls;
    for (int count = 0; count < 200; ++count) {
      calls.push_back(same.call<std::int64_t>("add", std::int64_t{1}));
    }
    for (const auto& each : calls) each.wait();
    EXPECT_EQ(counter.call<std::int64_t>("add", std::int64_t{0}).get(), 205);
    EXPECT_EQ(counter.call<std::string>("who").get(), "caller");
    EXPECT_THROW(counter.call("sub").get(), NoSuchFunction);
    EXPECT_THROW(counter.call("add").get(), WrongTypes);
    EXPECT_THROW(caller.create<Counter>({"server", "Nothing"}), NoSuchFunction);
    EXPECT_THROW(caller.create<Counter>({"server", "Counter"}), WrongTypes);
  }
  EXPECT_TRUE(eventually([] { return Counter::alive == 0; }));
  const auto left = caller.create<Counter>({"server", "Counter"}, std::int64_t{1});
  EXPECT_EQ(Counter::alive, 1);
  caller.close();
  EXPECT_TRUE(eventually([] { return Counter::alive == 0; }));
  EXPECT_THROW(left.call<std::int64_t>("add", std::int64_t{1}).get(), ShutDown);
}

TEST_P(EachTransport, a_server_that_goes_is_named_and_one_that_comes_back_is_found) {
  std::promise<void> entered;
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  server.serve("wait", [&entered, released] {
    entered.set_value();
    released.wait();
  });
  const auto open = caller.call({"server", "wait"});
  entered.get_future().wait();
  auto closing = std::async([this] { server.close(); });
  // Until it has closed, it answers that it is about to.
  EXPECT_TRUE(eventually([&] {
    try {
      caller.call({"server", "nothing"}).get();
    } catch (const ShutDown&) {
      return true;
    } catch (const NoSuchFunction&) {
    }
    return false;
  }));
  release.set_value();
  closing.get();
  EXPECT_NO_THROW(open.get());
  EXPECT_TRUE(eventually([&] {  // its name is still there
    try {
      caller.call({"server", "wait"}).get();
    } catch (const PeerDied&) {
      return true;
    } catch (const ShutDown&) {  // the goodbye is still on its way
    }
    return false;
  }));
  agents.restart_server();
  agents.server->serve("back", [] { return 1; });
  EXPECT_EQ(caller.call<int>({"server", "back"}).get(), 1);
}

TEST_P(EachTransport, many_threads_call_at_once_and_no_more_than_the_peer_takes) {
  std::atomic<int> running = 0;
  server.serve("twice", [&](int value) {
    ++running;
    return 2 * value;
  });
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<std::pair<int, Future<int>>> calls;
      for (int count = 0; count < 300; ++count) {
        const int value = 1000 * thread + count;
        calls.emplace_back(value, caller.call<int>({"server", "twice"}, value));
      }
      for (auto& [value, future] : calls) wrong += future.get() != 2 * value;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(running, 1200);
}

TEST_P(EachTransport, what_comes_after_a_call_runs_with_its_result) {
  server.serve("twice", [](int value) { return 2 * value; });
  server.serve("fail", []() -> int { throw std::runtime_error("no"); });
  const auto text = caller.call<int>({"server", "twice"}, 4)
                        .then([](int value) { return value + 1; })
                        .then([](int value) { return std::to_string(value); });
  EXPECT_EQ(text.get(), "9");
  std::promise<int> heard;
  caller.call<int>({"server", "twice"}, 1).then([&](int value) { heard.set_value(value); });
  EXPECT_EQ(heard.get_future().get(), 2);
  const auto failed = caller.call<int>({"server", "fail"}).then([](int value) { return value; });
  EXPECT_THROW(failed.get(), RemoteException);
#ifndef __SANITIZE_THREAD__  // it does not see how libstdc++ counts who has an exception
  const auto thrown = caller.call<int>({"server", "twice"}, 1).then([](int) -> int {
    throw std::logic_error("here");
  });
  EXPECT_THROW(thrown.get(), std::logic_error);
#endif
}

TEST(Agent, calls_whose_time_is_over_take_room_until_the_peer_has_done_them) {
  TwoAgents agents("unix", {.threads = 1, .max_calls = 4});
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> ran = 0;
  agents.server->serve("wait", [&, released] {
    ++ran;
    released.wait();
  });
  agents.server->serve("go", [] {});
  agents.caller->call({"server", "go"}).get();  // connected before time counts
  for (int count = 0; count < 20; ++count) {
    EXPECT_THROW(agents.caller->call({"server", "wait", 5ms}).get(), CallTimeout);
  }
  release.set_value();
  for (int count = 0; count < 20; ++count) agents.caller->call({"server", "wait"}).get();
  EXPECT_LE(ran, 24);  // those that were not begun in time were not begun at all
}

TEST(Agent, a_name_that_nobody_has_is_told_in_time) {
  TwoAgents agents("unix");
  EXPECT_THROW(agents.caller->call({"nobody", "f", 30ms}).get(), NoSuchPeer);
  EXPECT_THROW(agents.caller->call({"no body", "f", 30ms}), InvalidArgument);
}

TEST(Agent, an_agent_calls_itself) {
  TwoAgents agents("shared");
  agents.caller->serve("one", [] { return 1; });
  EXPECT_EQ(agents.caller->call<int>({"caller", "one"}).get(), 1);
}

TEST(Agent, more_than_the_limit_is_refused_on_both_sides) {
  TwoAgents agents("unix", {.max_message_bytes = 100000});
  agents.server->serve("large", [] { return blob_of(200000, 1); });
  agents.server->serve("take", [](Blob blob) { return blob.bytes; });
  EXPECT_THROW(agents.caller->call<Blob>({"server", "large"}).get(), BadMessage);
  EXPECT_THROW(agents.caller->call<std::size_t>({"server", "take"}, blob_of(200000, 1)),
               InvalidArgument);
  EXPECT_EQ(agents.caller->call<std::size_t>({"server", "take"}, blob_of(1000, 1)).get(), 1000u);
}

TEST(Agent, memory_that_is_shared_is_sent_without_a_copy) {
  TwoAgents agents("shared");
  agents.server->serve("fill", [](Blob blob) { std::memset(blob.data, 7, blob.bytes); });
  const Blob memory = agents.caller->shared_memory(1 << 20);
  std::memset(memory.data, 0, memory.bytes);
  agents.caller->call({"server", "fill"}, memory).get();
  EXPECT_EQ(memory.data[0], std::byte{7});
  EXPECT_EQ(memory.data[memory.bytes - 1], std::byte{7});
}

TEST(Agent, memory_goes_back_and_is_used_again) {
  TwoAgents agents("shared");
  agents.server->serve("take", [](Blob blob) { return blob; });
  const Blob sent = blob_of(1 << 20, 1);
  const int before = count_descriptors();
  for (int count = 0; count < 200; ++count) {
    ASSERT_TRUE(equal(agents.caller->call<Blob>({"server", "take"}, sent).get(), sent));
  }
  EXPECT_LT(count_descriptors() - before, 20);
}

TEST(Agent, who_does_not_know_the_secret_is_turned_away) {
  TwoAgents agents("sealed");
  agents.server->serve("one", [] { return 1; });
  TwoAgents strangers("sealed", {.secret = "something else that is long"});
  // The stranger finds the address, but not the secret.
  const auto address = agents.directory->find("agent/server");
  strangers.directory->set("agent/victim", *address);
  EXPECT_THROW(strangers.caller->call<int>({"victim", "one"}).get(), CallError);
  EXPECT_EQ(agents.caller->call<int>({"server", "one"}).get(), 1);
}

}  // namespace
}  // namespace lockstep::rpc
