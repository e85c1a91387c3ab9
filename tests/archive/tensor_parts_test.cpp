#include "archive/tensor_parts.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using namespace lockstep;

namespace {

// A file that holds `count` elements of a 3 x 4 tensor, from `begin` on.
SafetensorsHeader file_with(std::int64_t begin, std::int64_t count,
                            const std::string& shape = "[3,4]") {
  SafetensorsHeader header;
  header.metadata[kRangesMetadata] =
      concat(R"({"weight":{"begin":)", begin, R"(,"shape":)", shape, "}}");
  header.tensors.push_back({.info = {.name = "weight", .shape = {count}},
                            .offset = 100,
                            .bytes = static_cast<std::uint64_t>(4 * count)});
  return header;
}

std::string catalogue_refusal(const std::vector<SafetensorsHeader>& files) {
  try {
    catalogue_of(files);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST(TensorParts, stretches_of_all_files_make_up_a_tensor) {
  const auto tensors = catalogue_of({file_with(5, 7), file_with(0, 5)});
  const StoredTensor& weight = tensors.at("weight");
  EXPECT_EQ(weight.shape, (std::vector<std::int64_t>{3, 4}));
  ASSERT_EQ(weight.stretches.size(), 2u);
  EXPECT_EQ(weight.stretches[0].file, 1u) << "in the order of elements";

  std::vector<StoredBytes> read;
  for_each_stored(weight, 4, 3, [&](const StoredBytes& each) { read.push_back(each); });
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].file, 1u);
  EXPECT_EQ(read[0].offset, 100u + 4 * 4);
  EXPECT_EQ(read[0].target, 0u);
  EXPECT_EQ(read[0].bytes, 4u);
  EXPECT_EQ(read[1].file, 0u);
  EXPECT_EQ(read[1].offset, 100u);
  EXPECT_EQ(read[1].target, 4u);
  EXPECT_EQ(read[1].bytes, 8u);
}

TEST(TensorParts, what_is_missing_or_there_twice_is_named) {
  EXPECT_EQ(catalogue_refusal({file_with(0, 5), file_with(6, 6)}),
            "tensor 'weight': elements 5 to 6 are in no file");
  EXPECT_EQ(catalogue_refusal({file_with(0, 5), file_with(4, 8)}),
            "tensor 'weight': elements 4 to 5 are in two files");
  EXPECT_EQ(catalogue_refusal({file_with(0, 5)}),
            "tensor 'weight': elements from 5 on, of 12, are in no file");
  EXPECT_EQ(catalogue_refusal({file_with(8, 5)}), "its range of 'weight' is outside of the tensor");
  EXPECT_EQ(catalogue_refusal({file_with(0, 5), file_with(5, 7, "[12]")}),
            "tensor 'weight' is float32[12] in one file and float32[3, 4] in another");
}

TEST(TensorParts, ranks_have_files_of_their_own) {
  Manifest manifest;
  for (int rank = 0; rank < 11; ++rank) manifest.files[rank_file_name("model", rank)] = {};
  manifest.files["trainer.safetensors"] = {};
  EXPECT_EQ(rank_file_name("model", 3), "model.rank_3.safetensors");
  EXPECT_EQ(files_of_part(manifest, "model").size(), 11u);
  EXPECT_EQ(files_of_part(manifest, "model")[10], "model.rank_10.safetensors");
  EXPECT_EQ(files_of_part(manifest, "trainer").size(), 1u);
  EXPECT_TRUE(files_of_part(manifest, "optimizer").empty());
}
