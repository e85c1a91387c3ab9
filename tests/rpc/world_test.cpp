#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/rpc.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

const std::vector<at::ScalarType> kTypes = {
    at::kByte, at::kChar,     at::kShort,         at::kInt,          at::kLong,
    at::kHalf, at::kFloat,    at::kDouble,        at::kComplexFloat, at::kComplexDouble,
    at::kBool, at::kBFloat16, at::kFloat8_e4m3fn, at::kUInt16};

at::Tensor sample(std::int64_t count, at::ScalarType type) {
  return at::arange(count, at::kFloat).remainder(7).to(type);
}

// In a type that can be compared.
at::Tensor plain(const at::Tensor& value) {
  return value.to(value.is_complex() ? at::kComplexDouble : at::kFloat);
}

bool same(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         at::equal(plain(one), plain(other));
}

// Rank 0 calls rank 1, which gives back what it gets.
void tensors_come_back() {
  World world = init();
  rpc::Agent agent(world);
  agent.serve("echo", [](at::Tensor value) { return value; });
  agent.serve("sum", [](std::vector<at::Tensor> all) { return at::stack(all).sum(0); });
  world.barrier();
  if (world.rank() == 0) {
    const auto echo = [&](const at::Tensor& value) {
      return agent.call<at::Tensor>({"worker1", "echo"}, value).get();
    };
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t count : {0, 1, 100000}) {
        const at::Tensor sent = sample(count, type);
        EXPECT_TRUE(same(echo(sent), sent)) << c10::toString(type) << " " << count;
      }
    }
    EXPECT_FALSE(echo({}).defined());
    EXPECT_EQ(echo(at::scalar_tensor(5)).item<float>(), 5);
    const at::Tensor part = sample(1000000, at::kFloat).view({1000, 1000}).t().slice(1, 3, 900, 2);
    EXPECT_TRUE(same(echo(part), part));
    const at::Tensor learned = at::ones({5000}).set_requires_grad(true);
    EXPECT_FALSE(echo(learned).requires_grad());
    const at::Tensor conjugate = at::complex(at::arange(4, at::kFloat), at::ones({4})).conj();
    EXPECT_TRUE(same(echo(conjugate), conjugate));

    // Results stay what they are, whatever is received after them.
    std::vector<at::Tensor> kept;
    for (int count = 0; count < 20; ++count) {
      kept.push_back(echo(at::full({30000}, static_cast<float>(count))));
    }
    for (int count = 0; count < 20; ++count) {
      EXPECT_TRUE(kept[static_cast<std::size_t>(count)].eq(count).all().item<bool>());
    }
    const at::Tensor sum = agent.call<at::Tensor>({"worker1", "sum"}, kept).get();
    EXPECT_EQ(sum[29999].item<float>(), 190);
  }
  agent.shutdown();
}

}  // namespace

RANKS_TEST(RpcWorld, tensors_of_all_types_come_back_through_shared_memory, 2) {
  tensors_come_back();
}

RANKS_TEST_WITH(RpcWorld, tensors_of_all_types_come_back_between_machines,
                {.count = 2, .machines = 2}) {
  tensors_come_back();
}

RANKS_TEST(RpcWorld, a_shared_tensor_is_sent_without_a_copy, 2) {
  World world = init();
  rpc::Agent agent(world);
  agent.serve("fill", [](at::Tensor value) { value.fill_(3); });
  world.barrier();
  if (world.rank() == 0) {
    const at::Tensor shared = rpc::shared_tensor(agent, at::zeros({4, 10000}));
    agent.call({"worker1", "fill"}, shared[2]).get();
    EXPECT_EQ(shared.sum().item<float>(), 30000);
    const at::Tensor plain = at::zeros({10000});
    agent.call({"worker1", "fill"}, plain).get();
    EXPECT_EQ(plain.sum().item<float>(), 0);
  }
  agent.shutdown();
}

RANKS_TEST(RpcWorld, a_second_agent_does_not_take_what_the_first_one_left_for_its_own, 2) {
  World world = init();
  for (int round = 0; round < 2; ++round) {
    const std::string made = concat("made/", round);
    // Rank 0 calls before rank 1 has an agent: it must wait for that one.
    if (world.rank() == 1) world.store().wait({made}, 60s);
    rpc::Agent agent(world, {.setup = [round](rpc::Agent& self) {
                       self.serve("round", [round] { return round; });
                     }});
    if (world.rank() == 0) {
      world.store().set(made, "1");
      EXPECT_EQ(agent.call<int>({"worker1", "round"}).get(), round);
    }
    agent.shutdown();  // and this one waits for rank 0, too
  }
}

RANKS_TEST_WITH(RpcWorld, a_killed_peer_fails_all_calls_to_it_at_once,
                {.count = 3, .killed = {1}}) {
  World world = init({.backend = "gloo"});
  rpc::Agent agent(world);
  agent.serve("die", [](at::Tensor) -> at::Tensor { lockstep::testing::kill_this_process(); });
  agent.serve("sleep", [] { std::this_thread::sleep_for(60s); });
  world.barrier();
  if (world.rank() == 0) {
    const auto open = agent.call({"worker1", "sleep"});
    EXPECT_THROW(agent.call<at::Tensor>({"worker1", "die"}, at::ones({100000})).get(),
                 rpc::PeerDied);
    try {
      open.get();
      ADD_FAILURE();
    } catch (const rpc::PeerDied& error) {
      EXPECT_EQ(error.peer(), "worker1");
    }
    EXPECT_THROW(agent.call({"worker1", "sleep"}).get(), rpc::PeerDied);
    // Who is missing is named; this one must not wait for the dead.
    world.store().set("done", "1");
  } else {
    world.store().wait({"done"}, 60s);
  }
  try {
    agent.shutdown(200ms);
    ADD_FAILURE();
  } catch (const Timeout& error) {
    EXPECT_FALSE(error.missing().empty());
    EXPECT_EQ(error.missing().front() == 0 ? error.missing().back() : error.missing().front(), 1);
  }
  world.abort();
}

TEST(RpcTensor, what_cannot_be_sent_and_what_makes_no_sense_is_refused) {
  rpc::Payload payload;
  rpc::Writer out(payload);
  EXPECT_THROW(rpc::Codec<at::Tensor>::write(out, at::ones({2, 2}).to_sparse()), InvalidArgument);
  rpc::Codec<at::Tensor>::write(out, at::ones({2, 2}));
  const std::string good = payload.bytes;
  const auto refused = [&](std::size_t at, char value) {
    payload.bytes = good;
    payload.bytes[at] = value;
    rpc::Reader in(payload);
    EXPECT_THROW(rpc::Codec<at::Tensor>::read(in), rpc::BadMessage) << at;
  };
  refused(0, 100);  // type
  refused(0, 7);    // float64: other bytes
  refused(1, 3);    // dimensions
  refused(1, 100);
  refused(2, 5);       // size
  refused(9, '\x80');  // negative
  refused(8, 1);       // huge
}
