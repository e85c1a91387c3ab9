#include "pair_dataset.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "vocabulary.h"

namespace translate {

PairBatch PairDataset::get_batch(std::span<const std::int64_t> indices) const {
  std::size_t sources = 0, targets = 0;
  for (const std::int64_t index : indices) {
    sources = std::max(sources, get(index).source.size() + 2);
    targets = std::max(targets, get(index).target.size() + 1);
  }
  const auto rows = static_cast<std::int64_t>(indices.size());
  const auto padding = [&](std::size_t width) {
    return at::full({rows, static_cast<std::int64_t>(width)}, kPad, at::kLong);
  };
  PairBatch batch{.source = padding(sources),
                  .target = padding(targets),
                  .labels = padding(targets),
                  .indices = at::empty({rows}, at::kLong)};
  for (std::size_t row = 0; row < indices.size(); ++row) {
    const PairTokens& pair = get(indices[row]);
    std::int64_t* source = batch.source.mutable_data_ptr<std::int64_t>() + row * sources;
    std::int64_t* target = batch.target.mutable_data_ptr<std::int64_t>() + row * targets;
    std::int64_t* labels = batch.labels.mutable_data_ptr<std::int64_t>() + row * targets;
    *source = *target = kStart;
    *std::ranges::copy(pair.source, source + 1).out = kEnd;
    std::ranges::copy(pair.target, target + 1);
    *std::ranges::copy(pair.target, labels).out = kEnd;
    batch.indices.mutable_data_ptr<std::int64_t>()[row] = indices[row];
  }
  return batch;
}

std::vector<std::int32_t> with_marks(const std::vector<std::int32_t>& source) {
  std::vector<std::int32_t> marked = {kStart};
  marked.insert(marked.end(), source.begin(), source.end());
  marked.push_back(kEnd);
  return marked;
}

}  // namespace translate
