// What of a loader needs a GPU.
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "lockstep/loader.h"

using lockstep::Loader;
using lockstep::LoaderOptions;
using lockstep::TensorDataset;

namespace {

struct Conditions {
  int workers = 0;
  bool busy = true;  // the device lags behind the host; otherwise it waits for batches
};

// Goes through an epoch and compares what the device saw with the dataset at the end: a batch that
// was read before it had arrived, or whose memory was given away too early, is wrong.
template <typename Dataset>
void expect_right_batches(const Dataset& dataset, const at::Tensor& rows,
                          const Conditions& conditions) {
  Loader loader(dataset, {.batch_size = 64,
                          .shuffle = true,
                          .num_workers = conditions.workers,
                          .prefetch_factor = 4,
                          .device = c10::Device("cuda")});
  const at::Tensor busy = at::rand({2048, 2048}, at::TensorOptions(at::kCUDA));
  std::vector<at::Tensor> copies;
  std::vector<std::vector<std::int64_t>> indices;
  loader.begin_epoch(0);
  while (auto delivered = loader.next()) {
    EXPECT_TRUE(delivered->batch->is_cuda());
    if (conditions.busy) at::matmul(busy, busy);
    copies.push_back(delivered->batch->add(0));
    indices.push_back(delivered->indices);
    delivered->batch.reset();  // its memory may be used again as soon as the device is done with it
  }
  EXPECT_EQ(std::ssize(copies), rows.size(0) / 64);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const at::Tensor wanted = lockstep::detail::select_batch(rows, indices[i]);
    EXPECT_TRUE(at::equal(copies[i].cpu(), wanted)) << "batch " << i;
  }
}

}  // namespace

TEST(CudaLoader, batches_arrive_whole_while_the_device_is_busy) {
  const at::Tensor rows = at::rand({4096, 4096});
  const TensorDataset dataset(rows);
  for (const int workers : {0, 1, 3}) expect_right_batches(dataset, rows, {.workers = workers});
}

TEST(CudaLoader, batches_are_not_read_before_they_have_arrived) {
  const at::Tensor rows = at::rand({1024, 65'536});  // 16 MiB a batch: its copy takes a while
  const TensorDataset dataset(rows);
  for (const int workers : {0, 2}) {
    expect_right_batches(dataset, rows, {.workers = workers, .busy = false});
  }
}

TEST(CudaLoader, batches_arrive_on_the_stream_that_is_current) {
  const at::Tensor rows = at::rand({4096, 1024});
  const TensorDataset dataset(rows);
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::StreamGuard guard(cuda.getStreamFromGlobalPool(c10::Device("cuda:0")));
  expect_right_batches(dataset, rows, {.workers = 2});
}

TEST(CudaLoader, a_dataset_can_be_on_the_device) {
  const at::Tensor rows = at::rand({4096, 256});
  const TensorDataset dataset(rows.to(at::kCUDA));
  for (const int workers : {0, 2}) expect_right_batches(dataset, rows, {.workers = workers});
}

TEST(CudaLoader, pinned_batches_stay_on_the_host) {
  const TensorDataset dataset(at::rand({100, 3}), at::arange(100));
  for (const int workers : {0, 2}) {
    Loader loader(dataset, {.batch_size = 10, .num_workers = workers, .pin_memory = true});
    for (auto& [x, y] : loader.epoch(0)) {
      EXPECT_TRUE(x.is_pinned());
      EXPECT_TRUE(y.is_pinned());
      EXPECT_TRUE(x.is_cpu());
    }
  }
}
