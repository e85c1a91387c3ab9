#include <iostream>

#include <lockstep/distributed_sampler.h>

int main() {
  const lockstep::DistributedSampler sampler({.dataset_size = 10, .world_size = 2, .rank = 1});
  if (sampler.indices().size() != 5) return 1;
  std::cout << "lockstep works\n";
}
