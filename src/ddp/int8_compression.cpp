// Gradients as int8. They are cut into blocks of 512, parameter by parameter, so that a block and
// its scale do not depend on the bucket it is in. Rank r adds up every block whose number is r
// modulo the world size: it gets them from all ranks as int8, and sends the mean back as int8. Both
// roundings are remembered: that of the mean by the rank that made it.
#include <numeric>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/TensorOperators.h>

#include "ddp/compression_impl.h"

namespace lockstep {
namespace {

constexpr std::int64_t kScaleBytes = sizeof(float);
constexpr std::int64_t kRowBytes = kInt8Block + kScaleBytes;

// A row for each block: its int8 values, then the scale. A block that is not finite gets a scale
// that is not, and arrives as NaN.
at::Tensor pack(const at::Tensor& blocks) {
  const at::Tensor scale = blocks.abs().amax(/*dim=*/{1}, /*keepdim=*/true).div_(127);
  const at::Tensor inverse = at::where(scale > 0, scale.reciprocal(), at::zeros_like(scale));
  const at::Tensor values =
      (blocks * inverse).nan_to_num_(0, 0, 0).round_().clamp_(-127, 127).to(at::kChar);
  return at::cat({values.view(at::kByte), scale.view(at::kByte)}, /*dim=*/1);
}

at::Tensor unpack(const at::Tensor& rows) {
  const at::Tensor values = rows.narrow(1, 0, kInt8Block).contiguous().view(at::kChar);
  const at::Tensor scale = rows.narrow(1, kInt8Block, kScaleBytes).contiguous().view(at::kFloat);
  return values.to(at::kFloat).mul_(scale);
}

/// Which rows of a bucket each rank adds up.
struct Owners {
  std::vector<std::int64_t> order;   // rows by owner
  std::vector<std::int64_t> counts;  // rows of each owner
};

Owners owners_of(const std::vector<std::int64_t>& block_numbers, int ranks) {
  Owners owners{.order = {}, .counts = std::vector<std::int64_t>(ranks, 0)};
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t row = 0; row < block_numbers.size(); ++row) {
      if (block_numbers[row] % ranks != rank) continue;
      owners.order.push_back(static_cast<std::int64_t>(row));
      ++owners.counts[rank];
    }
  }
  return owners;
}

// A list of ranges of a tensor's rows would be no shorter.
at::Tensor index_tensor(const std::vector<std::int64_t>& values, c10::Device device) {
  return at::tensor(at::ArrayRef<std::int64_t>(values), at::kLong).to(device);
}

// The mean of the blocks that this rank adds up, in rank order.
at::Tensor mean_of_shards(const at::Tensor& packed, const Owners& owners, ProcessGroup& group) {
  const int ranks = group.size();
  const std::int64_t mine = owners.counts[group.rank()];
  const at::Tensor received = at::empty({mine * ranks, kRowBytes}, packed.options());
  group.all_to_all_single(received, packed,
                          {.output_split_sizes = std::vector<std::int64_t>(ranks, mine),
                           .input_split_sizes = owners.counts});
  at::Tensor sum = unpack(received.narrow(0, 0, mine));
  for (int rank = 1; rank < ranks; ++rank) sum.add_(unpack(received.narrow(0, rank * mine, mine)));
  return sum.div_(ranks);
}

// Every rank's shard, of which some may be a row shorter than others, in order of ranks.
at::Tensor gather_shards(const at::Tensor& packed, const Owners& owners, ProcessGroup& group) {
  const std::int64_t most = *std::ranges::max_element(owners.counts);
  const at::Tensor padded = at::zeros({most, kRowBytes}, packed.options());
  padded.narrow(0, 0, packed.size(0)).copy_(packed);
  const at::Tensor all = at::empty({most * group.size(), kRowBytes}, packed.options());
  group.all_gather_into_tensor(all, padded);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    parts.push_back(all.narrow(0, rank * most, owners.counts[rank]));
  }
  return at::cat(parts);
}

}  // namespace

void GradientCompression::Impl::reduce_int8(const std::vector<CompressedPiece>& pieces,
                                            const CompressionLink& link) {
  if (pieces.empty()) return;
  const c10::Device on = pieces.front().gradient.device();
  std::vector<std::int64_t> block_numbers, first_rows;
  for (const CompressedPiece& piece : pieces) {
    const Entry& entry = entries[piece.index];
    first_rows.push_back(static_cast<std::int64_t>(block_numbers.size()));
    const std::int64_t count = (entry.numel + kInt8Block - 1) / kInt8Block;
    for (std::int64_t i = 0; i < count; ++i) block_numbers.push_back(entry.first_block + i);
  }
  const auto rows = static_cast<std::int64_t>(block_numbers.size());
  if (rows == 0) return;

  const at::Tensor blocks = at::zeros({rows, kInt8Block}, at::TensorOptions(at::kFloat).device(on));
  const at::Tensor flat = blocks.view({-1});
  const auto part = [&](const at::Tensor& all, std::size_t i) {
    return all.narrow(0, first_rows[i] * kInt8Block, entries[pieces[i].index].numel);
  };
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    at::Tensor values = part(flat, i);
    values.copy_(pieces[i].gradient.view({-1}));
    if (error_feedback) values.add_(error_of(pieces[i].index));
  }

  ProcessGroup group = link.group;
  const Owners owners = owners_of(block_numbers, group.size());
  const at::Tensor order = index_tensor(owners.order, on);
  const at::Tensor packed = pack(blocks);
  const at::Tensor mean = mean_of_shards(packed.index_select(0, order), owners, group);
  const at::Tensor packed_mean = pack(mean);
  const at::Tensor result = at::empty_like(blocks);
  result.index_copy_(0, order, unpack(gather_shards(packed_mean, owners, group)));
  statistics.before += static_cast<double>(4 * blocks.numel());
  statistics.after += static_cast<double>(packed.numel());

  if (error_feedback) {
    at::Tensor error = blocks - unpack(packed);
    const std::int64_t first_of_mine = std::accumulate(
        owners.counts.begin(), owners.counts.begin() + group.rank(), std::int64_t{0});
    const at::Tensor mine = order.narrow(0, first_of_mine, owners.counts[group.rank()]);
    // The mean is divided by the number of ranks, and this error belongs to all of them.
    error.index_add_(0, mine, (mean - unpack(packed_mean)).mul_(group.size()));
    const at::Tensor flat_error = error.view({-1});
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      remember_error(pieces[i].index, part(flat_error, i));
    }
  }
  const at::Tensor flat_result = result.view({-1});
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].gradient.copy_(part(flat_result, i).view(pieces[i].gradient.sizes()));
  }
}

}  // namespace lockstep
