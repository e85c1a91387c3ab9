#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/support/ranks.h"

using namespace lockstep;

namespace {

at::Tensor filled(double value, int64_t count = 4, at::ScalarType type = at::kFloat) {
  return torch::full({count}, value, type);
}

::testing::AssertionResult all_equal(const at::Tensor& tensor, double value) {
  if ((tensor.to(at::kDouble) == value).all().item<bool>()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << tensor << " is not all " << value;
}

}  // namespace

RANKS_TEST(Collectives, all_reduce_knows_every_operation, 3) {
  World world = init();
  auto& group = world.group();
  const double mine = world.rank() + 2;  // 2, 3, 4
  const auto reduced = [&](ReduceOp op, at::ScalarType type) {
    at::Tensor tensor = filled(mine, 4, type);
    group.all_reduce(tensor, {.op = op});
    return tensor;
  };
  for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kInt}) {
    EXPECT_TRUE(all_equal(reduced(ReduceOp::sum, type), 9));
    EXPECT_TRUE(all_equal(reduced(ReduceOp::avg, type), 3));
    EXPECT_TRUE(all_equal(reduced(ReduceOp::product, type), 24));
    EXPECT_TRUE(all_equal(reduced(ReduceOp::min, type), 2));
    EXPECT_TRUE(all_equal(reduced(ReduceOp::max, type), 4));
  }
  EXPECT_TRUE(all_equal(reduced(ReduceOp::sum, at::kBFloat16), 9));
  EXPECT_TRUE(all_equal(reduced(ReduceOp::sum, at::kHalf), 9));
  EXPECT_TRUE(all_equal(reduced(ReduceOp::band, at::kLong), 2 & 3 & 4));
  EXPECT_TRUE(all_equal(reduced(ReduceOp::bor, at::kLong), 2 | 3 | 4));
  EXPECT_TRUE(all_equal(reduced(ReduceOp::bxor, at::kLong), 2 ^ 3 ^ 4));
}

RANKS_TEST(Collectives, move_data_as_their_names_say, 3) {
  World world = init();
  auto& group = world.group();
  const int rank = world.rank(), size = world.world_size();
  const auto list = [&](auto value_of) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < size; ++i) tensors.push_back(filled(value_of(i)));
    return tensors;
  };

  at::Tensor tensor = filled(rank);
  group.broadcast(tensor, {.root = 2});
  EXPECT_TRUE(all_equal(tensor, 2));

  tensor = filled(rank + 1);
  group.reduce(tensor, {.root = 1});
  if (rank == 1) {
    EXPECT_TRUE(all_equal(tensor, 6));
  }
  tensor = filled(rank + 1);
  group.reduce(tensor, {.op = ReduceOp::avg, .root = 1});
  if (rank == 1) {
    EXPECT_TRUE(all_equal(tensor, 2));
  }

  auto outputs = list([](int) { return -1.0; });
  group.all_gather(outputs, filled(rank * 10));
  for (int i = 0; i < size; ++i) EXPECT_TRUE(all_equal(outputs[i], i * 10));

  at::Tensor joined = torch::empty({4 * size});
  group.all_gather_into_tensor(joined, filled(rank));
  for (int i = 0; i < size; ++i) EXPECT_TRUE(all_equal(joined.narrow(0, 4 * i, 4), i));

  outputs = rank == 0 ? list([](int) { return -1.0; }) : std::vector<at::Tensor>{};
  group.gather(outputs, filled(rank + 7), {.root = 0});
  for (std::size_t i = 0; i < outputs.size(); ++i) EXPECT_TRUE(all_equal(outputs[i], i + 7.0));

  tensor = filled(-1);
  group.scatter(tensor, rank == 1 ? list([](int i) { return i * 5.0; }) : std::vector<at::Tensor>{},
                {.root = 1});
  EXPECT_TRUE(all_equal(tensor, rank * 5));

  tensor = filled(-1);
  group.reduce_scatter(tensor, list([&](int i) { return 100.0 * rank + i; }));
  EXPECT_TRUE(all_equal(tensor, 300 + 3 * rank));

  tensor = filled(-1);
  group.reduce_scatter_tensor(tensor, torch::cat(list([&](int i) { return i + 1.0; })),
                              {.op = ReduceOp::avg});
  EXPECT_TRUE(all_equal(tensor, rank + 1));

  outputs = list([](int) { return -1.0; });
  group.all_to_all(outputs, list([&](int i) { return 10.0 * rank + i; }));
  for (int i = 0; i < size; ++i) EXPECT_TRUE(all_equal(outputs[i], 10.0 * i + rank));

  joined = torch::empty({4 * size});
  group.all_to_all_single(joined, torch::cat(list([&](int i) { return 10.0 * rank + i; })));
  for (int i = 0; i < size; ++i)
    EXPECT_TRUE(all_equal(joined.narrow(0, 4 * i, 4), 10.0 * i + rank));
}

RANKS_TEST(Collectives, all_to_all_single_takes_uneven_parts, 2) {
  World world = init();
  // Rank r sends r + 1 rows to rank 0 and 3 - r rows to rank 1.
  const int64_t rank = world.rank();
  const at::Tensor input = torch::full({4}, static_cast<double>(rank));
  at::Tensor output = torch::empty({rank == 0 ? 3 : 5});
  world.group().all_to_all_single(
      output, input,
      {.output_split_sizes = rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{3, 2},
       .input_split_sizes = {rank + 1, 3 - rank}});
  EXPECT_TRUE(all_equal(output.narrow(0, 0, rank == 0 ? 1 : 3), 0));
  EXPECT_TRUE(all_equal(output.narrow(0, rank == 0 ? 1 : 3, 2), 1));
}

RANKS_TEST(Collectives, run_asynchronously, 2) {
  World world = init();
  std::vector<at::Tensor> tensors;
  std::vector<Work> works;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(filled(i + world.rank(), 1000));
    works.push_back(
        world.group().all_reduce(tensors.back(), {.op = ReduceOp::avg, .async_op = true}));
  }
  for (int i = 0; i < 10; ++i) {
    works[i].wait();
    works[i].wait();  // a second time changes nothing
    EXPECT_TRUE(works[i].is_completed());
    EXPECT_TRUE(all_equal(tensors[i], i + 0.5));
  }
}

RANKS_TEST(Collectives, point_to_point_messages_are_told_apart_by_tag, 2) {
  World world = init();
  auto& group = world.group();
  const int peer = 1 - world.rank();
  at::Tensor a = filled(-1), b = filled(-1);
  if (world.rank() == 0) {
    auto first = group.isend(filled(1), {.peer = peer, .tag = 1});
    auto second = group.isend(filled(2), {.peer = peer, .tag = 2});
    first.wait();
    second.wait();
  } else {
    auto second = group.irecv(b, {.peer = peer, .tag = 2});
    group.recv(a, {.peer = peer, .tag = 1});
    second.wait();
    EXPECT_TRUE(all_equal(a, 1));
    EXPECT_TRUE(all_equal(b, 2));
  }
  const at::Tensor out = filled(10 + world.rank());
  at::Tensor in = filled(-1);
  for (auto& work :
       group.batch_isend_irecv({{.kind = P2POp::Kind::send, .tensor = &out, .peer = peer},
                                {.kind = P2POp::Kind::recv, .tensor = &in, .peer = peer}})) {
    work.wait();
  }
  EXPECT_TRUE(all_equal(in, 10 + peer));
}

RANKS_TEST(Collectives, a_receive_from_anyone_tells_who_it_was, 3) {
  World world = init();
  ProcessGroup group = world.group();
  if (group.backend() == "hybrid") {
    at::Tensor tensor = filled(-1);
    EXPECT_THROW(group.irecv_any(tensor, 4), InvalidArgument);
    group = world.new_group({.ranks = {0, 1, 2}, .backend = "gloo"});
  }
  if (world.rank() == 0) {
    std::vector<int> senders;
    for (int i = 0; i < 2; ++i) {
      at::Tensor tensor = filled(-1);
      auto work = group.irecv_any(tensor, 4);
      work.wait();
      EXPECT_TRUE(all_equal(tensor, work.source_rank()));
      senders.push_back(work.source_rank());
    }
    std::ranges::sort(senders);
    EXPECT_EQ(senders, (std::vector<int>{1, 2}));
  } else {
    group.send(filled(world.rank()), {.peer = 0, .tag = 4});
  }
  world.barrier();  // others may still be connecting to this one in the new group
}

RANKS_TEST(Collectives, small_values_travel_as_strings_and_json, 3) {
  World world = init();
  auto& group = world.group();
  const std::string binary("\0\xff bytes", 8);
  EXPECT_EQ(group.broadcast_string(world.rank() == 1 ? binary : "", 1), binary);
  EXPECT_EQ(group.broadcast_string(""), "");
  EXPECT_EQ(group.all_gather_string(std::string(world.rank(), 'x')),
            (std::vector<std::string>{"", "x", "xx"}));
  const auto gathered = group.gather_json({{"rank", world.rank()}}, 2);
  EXPECT_EQ(gathered.size(), world.rank() == 2 ? 3u : 0u);
  if (world.rank() == 2) {
    EXPECT_EQ(gathered[1]["rank"], 1);
  }
  EXPECT_EQ(group.broadcast_json({{"lr", 0.1}, {"layers", {1, 2}}})["layers"][1], 2);
  EXPECT_EQ(group.all_gather_json(world.rank()).at(2), 2);
}

RANKS_TEST(Collectives, a_subgroup_has_its_own_ranks, 3) {
  World world = init();
  ProcessGroup pair = world.new_group({.ranks = {2, 0}});
  ProcessGroup all = world.new_group({.ranks = {0, 1, 2}});
  EXPECT_EQ(pair.is_member(), world.rank() != 1);
  if (pair.is_member()) {
    EXPECT_EQ(pair.rank(), world.rank() == 0 ? 0 : 1);
    EXPECT_EQ(pair.global_ranks(), (std::vector<int>{0, 2}));
    at::Tensor tensor = filled(world.rank());
    pair.all_reduce(tensor);
    EXPECT_TRUE(all_equal(tensor, 2));
  } else {
    EXPECT_THROW(pair.barrier(), InvalidArgument);
  }
  at::Tensor tensor = filled(1);
  all.all_reduce(tensor);
  EXPECT_TRUE(all_equal(tensor, 3));
}

RANKS_TEST(Collectives, bad_arguments_are_told_with_their_values_and_break_nothing, 2) {
  World world = init();
  auto& group = world.group();
  const auto refusal = [&](auto call) -> std::string {
    try {
      call();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal([&] { group.broadcast(filled(0), {.root = 2}); }).find("root 2"),
            std::string::npos);
  EXPECT_NE(refusal([&] { group.all_gather({}, filled(0)); }).find("0 tensors"), std::string::npos);
  EXPECT_NE(refusal([&] { group.send(filled(0), {.peer = 9}); }).find("peer 9"), std::string::npos);
  EXPECT_NE(
      refusal([&] { group.send(filled(0), {.peer = 1 - world.rank(), .tag = -1}); }).find("tag -1"),
      std::string::npos);
  EXPECT_NE(refusal([&] { group.all_reduce(at::Tensor()); }).find("undefined"), std::string::npos);
  EXPECT_NE(
      refusal([&] { group.all_gather_into_tensor(filled(0, 3), filled(0)); }).find("3 elements"),
      std::string::npos);
  EXPECT_NE(refusal([&] { world.new_group({.ranks = {0, 5}}); }).find("rank 5"), std::string::npos);
  EXPECT_NE(refusal([&] { world.new_group({.ranks = {1, 1}}); }).find("twice"), std::string::npos);
  EXPECT_THROW(group.all_reduce(filled(0).to_sparse(), {.op = ReduceOp::bor}), Error);
  at::Tensor tensor = filled(1);
  group.all_reduce(tensor);
  EXPECT_TRUE(all_equal(tensor, 2));
}

RANKS_TEST_WITH(Collectives, detailed_debugging_notices_ranks_that_call_different_things,
                {.count = 2, .environment = {{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}}}) {
  World world = init({.timeout = std::chrono::seconds(10)});
  at::Tensor tensor = filled(1);
  world.group().all_reduce(tensor);
  EXPECT_TRUE(all_equal(tensor, 2));
  try {
    world.group().all_reduce(filled(1, world.rank() + 1));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("mismatch"), std::string::npos) << error.what();
  }
}
