#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/element_types.h"
#include "lockstep/world.h"
#include "shm/reduce.h"

/// Every collective x type x operation x size on whatever backend a world has, against what one
/// process computes that adds in rank order.
namespace lockstep::testing {

using Tensors = std::vector<at::Tensor>;

inline at::Tensor tensor_of(int rank, std::int64_t count, at::ScalarType type) {
  torch::manual_seed(31 * count + rank);
  if (type == at::kBool) return torch::randint(0, 2, {count}, at::kLong).to(type);
  if (at::isFloatingType(type)) return torch::randn({count}).to(type);
  return torch::randint(1, 100, {count}, at::kLong).to(type);
}

inline Tensors of_all_ranks(int ranks, std::int64_t count, at::ScalarType type) {
  Tensors all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(tensor_of(rank, count, type));
  return all;
}

// What one process gets that adds in rank order.
inline at::Tensor reduced(const Tensors& all, ReduceOperator op, double divisor = 1) {
  std::vector<const void*> parts;
  for (const auto& each : all) parts.push_back(each.const_data_ptr());
  at::Tensor result = torch::empty_like(all[0]);
  reduce_elements({.type = *element_type(result.scalar_type()), .op = op, .divisor = divisor},
                  parts, result.numel(), result.mutable_data_ptr());
  return result;
}

inline bool equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.contiguous().const_data_ptr(),
                                         b.contiguous().const_data_ptr(), a.nbytes()) == 0);
}

inline const std::vector<std::pair<ReduceOp, ReduceOperator>> kOperations{
    {ReduceOp::sum, ReduceOperator::sum},      {ReduceOp::product, ReduceOperator::product},
    {ReduceOp::min, ReduceOperator::min},      {ReduceOp::max, ReduceOperator::max},
    {ReduceOp::band, ReduceOperator::bit_and}, {ReduceOp::bor, ReduceOperator::bit_or},
    {ReduceOp::bxor, ReduceOperator::bit_xor}};

inline void expect_reductions_in_rank_order(World& world, at::ScalarType type, std::int64_t count) {
  auto& group = world.group();
  const int ranks = group.size(), rank = group.rank();
  const Tensors all = of_all_ranks(ranks, count, type);
  for (const auto& [op, operation] : kOperations) {
    if (at::isFloatingType(type) && operation > ReduceOperator::max) continue;
    at::Tensor mine = all[rank].clone();
    group.all_reduce(mine, {.op = op});
    EXPECT_TRUE(equal_bits(mine, reduced(all, operation))) << type << " x " << count;
  }
  at::Tensor mean = all[rank].clone();
  group.all_reduce(mean, {.op = ReduceOp::avg});
  EXPECT_TRUE(equal_bits(mean, reduced(all, ReduceOperator::sum, ranks))) << type << " " << count;

  const at::Tensor sum = reduced(all, ReduceOperator::sum);
  for (int root = 0; root < ranks; ++root) {
    at::Tensor mine = all[rank].clone();
    group.reduce(mine, {.root = root});
    EXPECT_TRUE(equal_bits(mine, rank == root ? sum : all[rank])) << type << " to " << root;
  }
  Tensors inputs;  // for each rank
  for (int to = 0; to < ranks; ++to) inputs.push_back(tensor_of(100 * rank + to, count, type));
  Tensors meant;
  for (int from = 0; from < ranks; ++from) {
    meant.push_back(tensor_of(100 * from + rank, count, type));
  }
  for (const auto& [op, operation] : kOperations) {
    if (at::isFloatingType(type) && operation > ReduceOperator::max) continue;
    at::Tensor mine = all[rank].clone();
    group.reduce(mine, {.op = op, .root = ranks - 1});
    EXPECT_TRUE(equal_bits(mine, rank == ranks - 1 ? reduced(all, operation) : all[rank]))
        << type << " x " << count;
    at::Tensor part = torch::empty_like(all[0]);
    group.reduce_scatter(part, inputs, {.op = op});
    EXPECT_TRUE(equal_bits(part, reduced(meant, operation))) << type << " x " << count;
  }
}

inline void expect_moves(World& world, at::ScalarType type, std::int64_t count) {
  auto& group = world.group();
  const int ranks = group.size(), rank = group.rank();
  const Tensors all = of_all_ranks(ranks, count, type);
  for (int root = 0; root < ranks; ++root) {
    at::Tensor mine = all[rank].clone();
    group.broadcast(mine, {.root = root});
    EXPECT_TRUE(equal_bits(mine, all[root])) << type << " x " << count << " from " << root;
  }
  Tensors gathered;
  for (int each = 0; each < ranks; ++each) gathered.push_back(torch::empty_like(all[0]));
  group.all_gather(gathered, all[rank]);
  for (int each = 0; each < ranks; ++each) EXPECT_TRUE(equal_bits(gathered[each], all[each]));
  at::Tensor joined = torch::empty({count * ranks}, all[0].options());
  group.all_gather_into_tensor(joined, all[rank]);
  EXPECT_TRUE(equal_bits(joined, torch::cat(all)));

  if (count == 0) return;
  const int root = ranks - 1;
  Tensors at_root, sent;
  if (rank == root) at_root = gathered, sent = all;
  group.gather(at_root, all[rank], {.root = root});
  at::Tensor received = torch::empty_like(all[0]);
  group.scatter(received, sent, {.root = root});
  EXPECT_TRUE(equal_bits(received, all[rank]));
  Tensors list_in(ranks, all[rank]), list_out = gathered;
  group.all_to_all(list_out, list_in);
  for (int each = 0; each < ranks; ++each) EXPECT_TRUE(equal_bits(list_out[each], all[each]));
  at::Tensor exchanged = torch::empty({count * ranks}, all[0].options());
  group.all_to_all_single(exchanged, torch::cat(Tensors(ranks, all[rank])));
  EXPECT_TRUE(equal_bits(exchanged, torch::cat(all)));
}

/// Tensors whose elements do not lie side by side are handled like others.
inline void expect_strided_tensors(World& world) {
  auto& group = world.group();
  const int ranks = group.size(), rank = group.rank();
  const auto strided = [](int owner) {
    return tensor_of(owner, 3000, at::kFloat).view({60, 50}).t();
  };
  const auto as_it_was = [](const at::Tensor& tensor) { return tensor.contiguous().view({-1}); };
  Tensors all, gathered;
  for (int each = 0; each < ranks; ++each) {
    all.push_back(as_it_was(strided(each)));
    gathered.push_back(torch::zeros({50, 60}).t());
  }
  at::Tensor mine = strided(rank).clone(at::MemoryFormat::Preserve);
  ASSERT_FALSE(mine.is_contiguous());
  group.all_reduce(mine);
  EXPECT_TRUE(equal_bits(as_it_was(mine), reduced(all, ReduceOperator::sum)));
  mine = strided(rank);
  group.reduce(mine, {.root = ranks - 1});
  if (rank == ranks - 1) {
    EXPECT_TRUE(equal_bits(as_it_was(mine), reduced(all, ReduceOperator::sum)));
  }
  mine = strided(rank);
  group.broadcast(mine, {.root = ranks - 1});
  EXPECT_TRUE(equal_bits(as_it_was(mine), all[ranks - 1]));
  for (at::Tensor& each : gathered) each = torch::zeros({60, 50}).t();
  group.all_gather(gathered, strided(rank));
  for (int each = 0; each < ranks; ++each) {
    EXPECT_TRUE(equal_bits(as_it_was(gathered[each]), all[each]));
  }
}

/// Everybody sends to the next and to the one before, and receives the other way round.
inline void expect_messages(World& world, at::ScalarType type, std::int64_t count) {
  auto& group = world.group();
  const int ranks = group.size(), rank = group.rank();
  if (ranks == 1) return;
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const at::Tensor mine = tensor_of(rank, count, type);
  at::Tensor from_next = torch::empty_like(mine), from_previous = torch::empty_like(mine);
  std::vector<Work> works;
  works.push_back(group.isend(mine, {.peer = next, .tag = 1}));
  works.push_back(group.isend(mine, {.peer = previous, .tag = 2}));
  works.push_back(group.irecv(from_next, {.peer = next, .tag = 2}));
  works.push_back(group.irecv(from_previous, {.peer = previous, .tag = 1}));
  for (Work& work : works) work.wait();
  EXPECT_TRUE(equal_bits(from_next, tensor_of(next, count, type))) << type << " x " << count;
  EXPECT_TRUE(equal_bits(from_previous, tensor_of(previous, count, type))) << type;
}

/// Every collective, of every type, by every operation.
inline void expect_every_collective(World& world) {
  // Around the sizes at which the ways change: 16 KiB, chunks of 32 to 256 KiB; and many chunks.
  for (const std::int64_t count : {0, 1, 999, 4097, 70'001}) {
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
      expect_reductions_in_rank_order(world, type, count);
    }
    expect_moves(world, at::kFloat, count);
    if (count > 0) expect_messages(world, at::kFloat, count);
  }
  expect_strided_tensors(world);
  for (const auto type : {at::kBool, at::kChar, at::kByte, at::kShort, at::kInt, at::kDouble}) {
    expect_reductions_in_rank_order(world, type, 9'001);
    expect_moves(world, type, 9'001);
    expect_messages(world, type, 9'001);
  }
  at::Tensor large = tensor_of(world.rank(), 2'000'003, at::kFloat);
  world.group().all_reduce(large);
  EXPECT_TRUE(equal_bits(large, reduced(of_all_ranks(world.world_size(), 2'000'003, at::kFloat),
                                        ReduceOperator::sum)));
  world.barrier();
}

}  // namespace lockstep::testing
