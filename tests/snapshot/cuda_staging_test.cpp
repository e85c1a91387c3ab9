#include <cstring>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "snapshot/snapshot_plan.h"
#include "snapshot/staging.h"

using namespace lockstep;

namespace {

const at::Device kCuda(at::kCUDA, 0);

// Tensors on the GPU and on the CPU, contiguous and not.
Snapshot mixed_snapshot() {
  Snapshot snapshot;
  snapshot.parts["model"].tensors = {
      {"large", at::rand({2000, 3000}).to(kCuda)},
      {"transposed", at::arange(600, at::kInt).reshape({20, 30}).to(kCuda).t()},
      {"half", at::rand({777}).to(kCuda, at::kBFloat16)},
      {"scalar", at::full({}, 3, at::kLong).to(kCuda)},
      {"here", at::rand({100, 7})},
  };
  return snapshot;
}

at::Tensor staged_tensor(const Staging& staging, const SnapshotPlan::Part& part,
                         std::size_t index) {
  const at::Tensor& like = part.tensors[index];
  auto* data =
      const_cast<std::byte*>(staging.data()) + part.staging_offset + part.layout.offsets[index];
  return at::from_blob(data, like.sizes(), at::TensorOptions().dtype(like.scalar_type())).clone();
}

}  // namespace

TEST(CudaStaging, what_is_copied_does_not_change_with_the_tensors_on_the_gpu) {
  const Snapshot snapshot = mixed_snapshot();
  const SnapshotPlan plan = plan_snapshot(snapshot);
  const SnapshotPlan::Part& part = plan.parts.at(0);
  std::vector<at::Tensor> expected;
  for (const at::Tensor& tensor : part.tensors) expected.push_back(tensor.cpu().clone());
  Staging staging;
  staging.reserve(plan, /*touch=*/false);
  staging.copy(plan);
  for (const at::Tensor& tensor : part.tensors) tensor.zero_();
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(staged_tensor(staging, part, i), expected[i])) << i;
  }
}

TEST(CudaStaging, copies_wait_for_what_the_gpu_is_still_computing) {
  const SnapshotPlan plan = plan_snapshot(mixed_snapshot());
  const SnapshotPlan::Part& part = plan.parts.at(0);
  Staging staging;
  staging.reserve(plan, /*touch=*/false);
  at::Tensor large;
  std::size_t place = 0;
  for (std::size_t i = 0; i < part.tensors.size(); ++i) {
    if (part.tensors[i].numel() == 2000 * 3000) {
      large = part.tensors[i];
      place = i;
    }
  }
  const at::Tensor before = large.cpu();
  for (int i = 0; i < 200; ++i) large.add_(1);  // under way when the copy begins
  staging.copy(plan);
  at::Tensor after = before.clone();
  for (int i = 0; i < 200; ++i) after.add_(1);
  EXPECT_TRUE(at::equal(staged_tensor(staging, part, place), after));
}

TEST(CudaStaging, files_can_be_written_straight_from_the_gpu) {
  const SnapshotPlan plan = plan_snapshot(mixed_snapshot());
  Staging staging;
  staging.reserve(plan, /*touch=*/false);
  staging.copy(plan);
  const auto content = [](const SnapshotFile& file) {
    std::string bytes;
    file.produce([&](std::span<const std::byte> part) {
      bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
    });
    return bytes;
  };
  const auto staged = files_of(plan, staging.data());
  const auto direct = files_of(plan, nullptr);
  ASSERT_EQ(staged.size(), direct.size());
  for (std::size_t i = 0; i < staged.size(); ++i) EXPECT_EQ(content(staged[i]), content(direct[i]));
}
