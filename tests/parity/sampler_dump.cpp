// Prints what samplers give, for sampler_parity.py to compare with Python's. Each line of the input
// is one sampler, each line of the output its indices:
//   distributed <dataset_size> <world_size> <rank> <epoch> <seed> <shuffle> <drop_last>
//   random <dataset_size> <epoch> <seed> <replacement> <num_samples, or -1 for the default>
//   subset <first> <step> <count> <epoch> <seed>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/distributed_sampler.h"
#include "lockstep/sampler.h"

namespace {

std::unique_ptr<lockstep::Sampler> make_sampler(const std::string& line) {
  std::istringstream fields(line);
  std::string kind;
  std::int64_t epoch = 0;
  std::unique_ptr<lockstep::Sampler> sampler;
  fields >> kind;
  if (kind == "distributed") {
    lockstep::DistributedSamplerOptions options;
    fields >> options.dataset_size >> options.world_size >> options.rank >> epoch >> options.seed >>
        options.shuffle >> options.drop_last;
    sampler = std::make_unique<lockstep::DistributedSampler>(options);
  } else if (kind == "random") {
    lockstep::RandomSamplerOptions options;
    std::int64_t num_samples = 0;
    fields >> options.dataset_size >> epoch >> options.seed >> options.replacement >> num_samples;
    if (num_samples >= 0) options.num_samples = num_samples;
    sampler = std::make_unique<lockstep::RandomSampler>(options);
  } else if (kind == "subset") {
    std::int64_t first = 0, step = 0, count = 0;
    lockstep::SubsetSamplerOptions options{.shuffle = true};
    fields >> first >> step >> count >> epoch >> options.seed;
    std::vector<std::int64_t> subset;
    for (std::int64_t i = 0; i < count; ++i) subset.push_back(first + i * step);
    sampler = std::make_unique<lockstep::SubsetSampler>(std::move(subset), options);
  }
  if (!sampler || !fields) return nullptr;
  sampler->set_epoch(epoch);
  return sampler;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto sampler = make_sampler(line);
    if (!sampler) {
      std::cerr << "sampler_dump: cannot read \"" << line << "\"\n";
      return 2;
    }
    for (const std::int64_t index : sampler->indices()) std::cout << index << ' ';
    std::cout << '\n';
  }
}
