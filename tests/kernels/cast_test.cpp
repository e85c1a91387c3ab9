#include "kernels/cast.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/tensors.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

TEST(CastKernel, RoundsAllPartsToTheNearest) {
  const std::vector<std::int64_t> counts = {1, 7, 8, 100003};
  std::vector<at::Tensor> from, to;
  std::vector<kernels::CastPart> parts;
  for (const std::int64_t count : counts) {
    from.push_back(copy_of(torch::randn({count}, kDevice)));
    to.push_back(empty_bf16({count}));
    parts.push_back({f32(from.back()), bf16(to.back()), count});
  }
  const std::int64_t pieces = kernels::number_pieces(parts.data(), static_cast<int>(parts.size()));
  const auto bytes = static_cast<std::int64_t>(parts.size() * sizeof(kernels::CastPart));
  const at::Tensor list = torch::from_blob(parts.data(), {bytes}, at::kByte).to(kDevice);
  kernels::cast_to_bf16(reinterpret_cast<const kernels::CastPart*>(list.data_ptr()),
                        static_cast<int>(parts.size()), pieces, current_stream());
  for (std::size_t i = 0; i < to.size(); ++i) {
    EXPECT_TRUE(to[i].equal(from[i].to(at::kBFloat16))) << counts[i];
  }
}

}  // namespace
