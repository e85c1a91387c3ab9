#include "lockstep/torch_file.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"
#include "tests/snapshot/support.h"
#include "tests/support/refusal.h"

using namespace lockstep;
using namespace lockstep::testing;

TEST(TorchFile, a_snapshot_of_the_tutorial_comes_back) {
  const TemporaryFolder folder;
  State model;
  model.tensors = {{"weight", at::rand({2, 3})}, {"half", at::rand({4}).to(at::kHalf)}};
  save_pt(folder / "s.pt", PyValue::dict({{"MODEL_STATE", model}, {"EPOCHS_RUN", 10}}));
  const PyValue file = load_pt(folder / "s.pt");
  EXPECT_EQ(file.at("EPOCHS_RUN").to_int(), 10);
  const State back = file.at("MODEL_STATE").to_state();
  ASSERT_EQ(back.tensors.size(), 2u);
  for (const auto& [name, tensor] : model.tensors) {
    EXPECT_TRUE(at::equal(back.tensors.at(name), tensor)) << name;
  }
}

TEST(TorchFile, views_are_saved_without_what_they_do_not_show) {
  const TemporaryFolder folder;
  const at::Tensor large = at::rand({100'000});
  save_pt(folder / "s.pt", PyValue::dict({{"part", large.slice(0, 5, 15)},
                                          {"transposed", large.slice(0, 0, 6).view({2, 3}).t()}}));
  EXPECT_LT(std::filesystem::file_size(folder / "s.pt"), 3000u);
  const PyValue file = load_pt(folder / "s.pt");
  EXPECT_TRUE(at::equal(file.at("part").to_tensor(), large.slice(0, 5, 15)));
  EXPECT_TRUE(at::equal(file.at("transposed").to_tensor(), large.slice(0, 0, 6).view({2, 3}).t()));
}

TEST(TorchFile, json_and_back) {
  const nlohmann::json json = {{"a", {1, 2.5, nullptr, true, "x"}}, {"b", {{"c", -1}}}};
  EXPECT_EQ(PyValue(json).to_json(), json);
}

TEST(TorchFile, nested_dicts_become_names_with_dots) {
  const PyValue value = PyValue::dict(
      {{"outer", PyValue::dict({{"weight", at::ones({2})}, {"count", 3}})}, {"lr", 0.1}});
  const State state = value.to_state();
  EXPECT_TRUE(state.tensors.contains("outer.weight"));
  EXPECT_EQ(state.values, (nlohmann::json{{"outer", {{"count", 3}}}, {"lr", 0.1}}));
}

TEST(TorchFile, mistakes_name_what_is_there) {
  const PyValue value = PyValue::dict({{"model", 1}, {"epoch", 2}});
  EXPECT_TRUE(has(refusal([&] { value.at("MODEL_STATE"); }), "model, epoch"));
  EXPECT_TRUE(has(refusal([&] { value.at("model").to_tensor(); }), "not a tensor"));
  const TemporaryFolder folder;
  EXPECT_TRUE(has(refusal([&] {
                    save_pt(folder / "s.pt", PyValue::dict({{"hole", at::Tensor()}}));
                  }),
                  "'hole'"));
  EXPECT_FALSE(std::filesystem::exists(folder / "s.pt"));
  EXPECT_THROW(load_pt(folder / "none.pt"), SystemError);
  EXPECT_THROW(save_pt(folder / "none/s.pt", PyValue::dict({})), SystemError);
}

TEST(TorchFile, a_flipped_bit_in_a_tensor_is_found) {
  const TemporaryFolder folder;
  save_pt(folder / "s.pt", PyValue::dict({{"weight", at::zeros({1000})}}));
  flip_bit(folder / "s.pt", 2000);
  EXPECT_TRUE(has(refusal([&] { load_pt(folder / "s.pt"); }), "checksum"));
}

TEST(TorchFile, safetensors_come_back) {
  const TemporaryFolder folder;
  const std::map<std::string, at::Tensor> tensors = some_snapshot(3).parts["model"].tensors;
  save_safetensors(folder / "m.safetensors", tensors);
  const auto back = load_safetensors(folder / "m.safetensors");
  ASSERT_EQ(back.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(back.at(name), tensor)) << name;
}
