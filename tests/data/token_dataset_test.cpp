#include "lockstep/token_dataset.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>

#include "lockstep/embedded_instructions.h"
#include "lockstep/error.h"
#include "lockstep/loader.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using lockstep::testing::TemporaryFolder;

namespace {

TokenCache make_cache(const TemporaryFolder& folder) {
  const EmbeddedInstructions data =
      embedded_instructions({.train_records = 200, .held_out_records = 20});
  const std::string_view texts[] = {"copy reverse sort add next plural"};
  return TokenCache::open_or_make(train_tokenizer(texts, {.vocab_size = 280}),
                                  TextSource(data.train),
                                  {.directory = folder.path().string(),
                                   .seq_length = 16,
                                   .prompt = PromptTemplate::brief(),
                                   .answers_only = true,
                                   .validation = TextSource(data.held_out)});
}

}  // namespace

TEST(TokenDataset, labels_are_the_tokens_that_follow_or_no_loss) {
  const TemporaryFolder folder;
  const TokenDataset dataset(make_cache(folder).train());
  std::int64_t losses = 0;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const TokenBlock block = dataset.get(i);
    ASSERT_EQ(block.input.sizes(), (std::vector<std::int64_t>{16}));
    ASSERT_EQ(block.input.scalar_type(), at::kLong);
    for (std::int64_t place = 0; place < 16; ++place) {
      const auto label = block.labels[place].item<std::int64_t>();
      if (label == -100) continue;
      ++losses;
      if (place < 15) {
        ASSERT_EQ(label, block.input[place + 1].item<std::int64_t>());
      }
    }
  }
  EXPECT_EQ(losses, dataset.blocks().loss_tokens());
  EXPECT_THROW(dataset.get(dataset.size()), InvalidArgument);
}

TEST(TokenDataset, batches_are_its_blocks_one_below_the_other) {
  const TemporaryFolder folder;
  const TokenCache cache = make_cache(folder);
  const TokenDataset dataset(cache.train());
  const std::vector<std::int64_t> indices = {3, 0, dataset.size() - 1};
  const TokenBlock batch = dataset.get_batch(indices);
  for (std::int64_t row = 0; row < 3; ++row) {
    const TokenBlock block = dataset.get(indices[static_cast<std::size_t>(row)]);
    EXPECT_TRUE(at::equal(batch.input[row], block.input));
    EXPECT_TRUE(at::equal(batch.labels[row], block.labels));
  }
}

TEST(TokenDataset, a_loader_delivers_every_block) {
  const TemporaryFolder folder;
  const TokenDataset dataset(make_cache(folder).train());
  Loader loader(dataset, {.batch_size = 8, .num_workers = 2});
  std::int64_t rows = 0;
  for (auto& batch : loader.epoch(0)) {
    EXPECT_EQ(batch.input.size(1), 16);
    EXPECT_EQ(batch.labels.sizes(), batch.input.sizes());
    rows += batch.input.size(0);
  }
  EXPECT_EQ(rows, dataset.size());
}
