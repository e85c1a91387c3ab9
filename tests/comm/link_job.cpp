// One rank of hybrid_link_test.py: reduces a tensor in several ways and says how many bytes each
// took on the link between the machines, as rank 0 sees it.
#include <cstdlib>
#include <iostream>
#include <string>

#include <torch/torch.h>

#include "comm/group_impl.h"
#include "comm/ordered_reduction.h"
#include "lockstep/error.h"
#include "lockstep/world.h"
#include "tests/support/link_bytes.h"

namespace {

using lockstep::OrderedReduction;
using lockstep::ProcessGroup;
using lockstep::World;

constexpr std::int64_t kCount = 1 << 20;  // of floats: 4 MiB

// Read by rank 0 while nobody sends: between two barriers, for a rank that is past one begins its
// next call at once.
std::int64_t bytes_so_far(World& world) {
  world.barrier();
  const std::int64_t bytes = world.rank() == 0 ? lockstep::testing::link_bytes("eth0") : 0;
  world.barrier();
  return bytes;
}

template <typename Call>
void count_bytes(World& world, const std::string& name, Call call) {
  call();  // connections are made, ways agreed on
  const std::int64_t before = bytes_so_far(world);
  call();
  const std::int64_t after = bytes_so_far(world);
  if (world.rank() == 0) std::cout << name << ' ' << after - before << std::endl;
}

void mean(OrderedReduction& reduction, const at::Tensor& tensor) {
  const auto future = reduction.mean(tensor, OrderedReduction::Urgency::wait_now);
  future->waitAndThrow();
}

void run() {
  at::set_num_threads(1);
  World world = lockstep::init({.device = "cpu"});
  std::vector<int> everyone;
  for (int rank = 0; rank < world.world_size(); ++rank) everyone.push_back(rank);
  ProcessGroup gloo = world.new_group({.ranks = everyone, .backend = "gloo"});
  ProcessGroup flat = world.new_group({.ranks = everyone, .backend = "gloo"});
  if (world.rank() == 0) std::cout << "backend " << world.group().backend() << std::endl;
  const at::Tensor tensor = torch::full({kCount}, world.rank() + 1.0F);
  const auto reduced = [&](ProcessGroup& group) {
    const at::Tensor copy = tensor.clone();
    group.all_reduce(copy);
    const float sum = static_cast<float>(world.world_size() * (world.world_size() + 1)) / 2;
    if (!(copy == sum).all().item<bool>()) throw lockstep::Error("the sum is wrong");
  };
  count_bytes(world, "all_reduce_gloo", [&] { reduced(gloo); });
  count_bytes(world, "all_reduce", [&] { reduced(world.group()); });
  count_bytes(world, "broadcast", [&] { world.group().broadcast(tensor.clone()); });
  OrderedReduction by_machine(world.group().impl()), rank_by_rank(flat.impl());
  count_bytes(world, "ordered", [&] { mean(by_machine, tensor.clone()); });
  setenv("LOCKSTEP_SHM", "0", 1);
  count_bytes(world, "ordered_flat", [&] { mean(rank_by_rank, tensor.clone()); });
}

}  // namespace

int main() try { run(); } catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
