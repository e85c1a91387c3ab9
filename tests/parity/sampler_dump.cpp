// Prints what samplers give, for sampler_parity.py to compare with Python's. Each line of the input
// is one sampler, each line of the output its indices:
//   distributed <dataset_size> <world_size> <rank> <epoch> <seed> <shuffle> <drop_last>
//   random <dataset_size> <epoch> <seed> <replacement> <num_samples, or -1 for the default>
//   subset <first> <step> <count> <epoch> <seed>
//   loader <dataset_size> <slots> <slot> <epoch> <seed> <shuffle> <drop_last> <batch_size>
// A loader's line has -1 after each batch.
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "lockstep/distributed_sampler.h"
#include "lockstep/loader.h"
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

// Sample i is i.
struct Numbers {
  std::int64_t count = 0;
  std::int64_t size() const { return count; }
  std::int64_t get(std::int64_t index) const { return index; }
};

// False when the line is not that of a loader.
bool print_loader(const std::string& line) {
  std::istringstream fields(line);
  std::string kind;
  Numbers dataset;
  lockstep::Deal deal;
  lockstep::LoaderOptions options;
  std::int64_t epoch = 0;
  fields >> kind >> dataset.count >> deal.slots >> deal.mine[0] >> epoch >> options.seed >>
      options.shuffle >> options.drop_last >> options.batch_size;
  if (!fields || kind != "loader") return false;
  lockstep::Loader loader(dataset, options);
  loader.deal(deal);
  for (const at::Tensor& batch : loader.epoch(epoch)) {
    const auto* first = batch.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < batch.numel(); ++i) std::cout << first[i] << ' ';
    std::cout << "-1 ";
  }
  std::cout << '\n';
  return true;
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (print_loader(line)) continue;
    const auto sampler = make_sampler(line);
    if (!sampler) {
      std::cerr << "sampler_dump: cannot read \"" << line << "\"\n";
      return 2;
    }
    for (const std::int64_t index : sampler->indices()) std::cout << index << ' ';
    std::cout << '\n';
  }
}
