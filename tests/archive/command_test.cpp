#include "archive/snapshot_command.h"

#include <cmath>
#include <filesystem>
#include <sstream>

#include <gtest/gtest.h>

#include "archive/checkpoint.h"
#include "archive/element_value.h"
#include "archive/optimizer_dict.h"
#include "archive/torch_archive.h"
#include "tests/archive/files.h"
#include "tests/archive/some_files.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

struct Ran {
  int code = 0;
  std::string output;
};

Ran run(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  const int code = snapshot_command(arguments, out);
  return {code, out.str()};
}

// A .pt file as a training run in Python leaves it.
void write_python_file(const std::string& path, float first) {
  DictValue model{.items = {}, .ordered = true};
  model.items.push_back({{std::string("module.weight")}, {floats({first, 2, 3})}});
  DictValue slots;
  slots.items.push_back({{std::string("exp_avg")}, {floats({0, 0, first})}});
  DictValue state;
  state.items.push_back({{std::int64_t{0}}, {std::move(slots)}});
  DictValue group;
  group.items.push_back({{std::string("lr")}, {0.1}});
  group.items.push_back({{std::string("betas")}, {TupleValue{{{0.9}, {0.999}}}}});
  group.items.push_back({{std::string("params")}, {ListValue{{{std::int64_t{0}}}}}});
  DictValue optimizer;
  optimizer.items.push_back({{std::string("state")}, {std::move(state)}});
  optimizer.items.push_back({{std::string("param_groups")}, {ListValue{{{std::move(group)}}}}});
  DictValue file;
  file.items.push_back({{std::string("model")}, {std::move(model)}});
  file.items.push_back({{std::string("optimizer")}, {std::move(optimizer)}});
  file.items.push_back({{std::string("epoch")}, {std::int64_t{10}}});
  write_torch_archive(path, {std::move(file)});
}

}  // namespace

TEST(SnapshotCommand, a_run_directory_stands_for_its_snapshots) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/snapshots");
  save_some(folder / "run/snapshots", 1, {}, 3000, false);
  EXPECT_EQ(run({"list", folder / "run"}).output, run({"list", folder / "run/snapshots"}).output);
  EXPECT_EQ(run({"verify", folder / "run"}).output, "step_1: intact\n");
  EXPECT_EQ(run({"diff", folder / "run", folder / "run/snapshots/step_1"}).code, 0);
}

TEST(SnapshotCommand, list_shows_the_newest_first_with_its_links) {
  const TemporaryFolder folder;
  for (int step = 1; step <= 2; ++step) save_some(folder.path(), step, {}, 3000, step == 1);
  std::filesystem::remove(folder / "step_1/state.json");
  const Ran ran = run({"list", folder.path()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_LT(ran.output.find("step_2"), ran.output.find("step_1"));
  EXPECT_TRUE(has(ran.output, "latest")) << ran.output;
  EXPECT_TRUE(has(ran.output, "damaged: state.json is missing best")) << ran.output;
}

TEST(SnapshotCommand, inspect_shows_tensors_and_values) {
  const TemporaryFolder folder;
  save_some(folder.path(), 7);
  const Ran ran = run({"inspect", folder.path()});
  EXPECT_TRUE(has(ran.output, "step 7")) << ran.output;
  EXPECT_TRUE(has(ran.output, "weight  uint8[3000]")) << ran.output;
  EXPECT_TRUE(has(ran.output, "step = 7")) << ran.output;
  write_python_file(folder / "x.pt", 1);
  const Ran file = run({"inspect", folder / "x.pt"});
  EXPECT_TRUE(has(file.output, "module.weight: float32[3]")) << file.output;
  EXPECT_TRUE(has(file.output, "epoch: 10")) << file.output;
}

TEST(SnapshotCommand, verify_tells_damage_by_its_exit_code) {
  const TemporaryFolder folder;
  save_some(folder.path(), 1);
  save_some(folder.path(), 2);
  EXPECT_EQ(run({"verify", folder.path()}).code, 0);
  std::string content = read_text(folder / "step_1/model.safetensors");
  content.back() ^= 1;
  write_text(folder / "step_1/model.safetensors", content);
  const Ran ran = run({"verify", folder.path()});
  EXPECT_EQ(ran.code, 1);
  EXPECT_TRUE(has(ran.output, "step_2: intact")) << ran.output;
  EXPECT_TRUE(has(ran.output, "step_1: model.safetensors is damaged")) << ran.output;
  EXPECT_EQ(run({"verify", folder / "step_2"}).code, 0);
  EXPECT_EQ(run({"verify", folder / "step_1"}).code, 1);
}

TEST(SnapshotCommand, diff_names_what_differs_and_by_how_much) {
  const TemporaryFolder folder;
  write_python_file(folder / "a.pt", 1);
  write_python_file(folder / "b.pt", 1.5);
  EXPECT_EQ(run({"diff", folder / "a.pt", folder / "a.pt"}).code, 0);
  const Ran ran = run({"diff", folder / "a.pt", folder / "b.pt"});
  EXPECT_EQ(ran.code, 1);
  EXPECT_TRUE(has(ran.output, "model/module.weight: 1 of 3 elements differ, by at most 0.5"))
      << ran.output;
  EXPECT_TRUE(has(ran.output, "optimizer/0.exp_avg")) << ran.output;
  EXPECT_FALSE(
      has(run({"diff", "--part=model", folder / "a.pt", folder / "b.pt"}).output, "exp_avg"));
}

TEST(SnapshotCommand, a_file_of_python_becomes_a_snapshot_and_comes_back) {
  const TemporaryFolder folder;
  write_python_file(folder / "a.pt", 1);
  run({"convert", folder / "a.pt", folder / "snapshots"});
  const Checkpoint snapshot = open_checkpoint(folder / "snapshots");
  EXPECT_TRUE(snapshot.parts.at("model").tensors.contains("module.weight"));
  EXPECT_TRUE(snapshot.parts.at("optimizer").tensors.contains("0.exp_avg"));
  EXPECT_EQ(snapshot.parts.at("optimizer").values["groups"][0]["lr"], 0.1);
  run({"convert", folder / "snapshots", folder / "b.pt"});
  EXPECT_EQ(run({"diff", folder / "snapshots", folder / "b.pt"}).code, 0);
}

TEST(SnapshotCommand, convert_writes_the_model_alone_without_prefixes) {
  const TemporaryFolder folder;
  write_python_file(folder / "a.pt", 1);
  run({"convert", folder / "a.pt", folder / "a.safetensors"});
  EXPECT_TRUE(
      open_checkpoint(folder / "a.safetensors").parts.at("model").tensors.contains("weight"));
  EXPECT_EQ(run({"diff", "--part", "model", folder / "a.pt", folder / "a.safetensors"}).code, 0);
  run({"convert", folder / "a.safetensors", folder / "c.pt"});
  EXPECT_EQ(run({"diff", folder / "a.safetensors", folder / "c.pt"}).code, 0);
}

TEST(SnapshotCommand, a_snapshot_becomes_a_folder_as_hugging_face_has_it) {
  const TemporaryFolder folder;
  save_some(folder / "", 1);
  run({"convert", folder / "step_1", folder / "hub"});
  EXPECT_EQ(run({"diff", folder / "step_1", folder / "hub/model.safetensors"}).output,
            "step: only in the first\ndifferent: 1 tensors are equal, 1 entries differ\n");
}

TEST(SnapshotCommand, mistakes_are_told_in_one_line) {
  const TemporaryFolder folder;
  write_text(folder / "x.pt", "nonsense");
  write_python_file(folder / "a.pt", 1);
  const auto refusal_of = [](const std::vector<std::string>& arguments) {
    const std::string text = refusal([&] { run(arguments); });
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    return text;
  };
  EXPECT_TRUE(has(refusal_of({}), "list"));
  EXPECT_TRUE(has(refusal_of({"destroy"}), "destroy"));
  EXPECT_TRUE(has(refusal_of({"list"}), "1 path"));
  EXPECT_TRUE(has(refusal_of({"diff", "a"}), "2 paths"));
  EXPECT_TRUE(has(refusal_of({"list", "--part=x", "a"}), "--part=x"));
  EXPECT_TRUE(has(refusal_of({"inspect", folder / "x.pt"}), "zip"));
  EXPECT_TRUE(has(refusal_of({"inspect", folder.path()}), "no snapshot"));
  EXPECT_TRUE(has(refusal_of({"list", folder / "x.pt"}), "no directory"));
  EXPECT_TRUE(
      has(refusal_of({"convert", "--part=nothing", folder / "a.pt", folder / "o.safetensors"}),
          "model, optimizer"));
  EXPECT_THROW(run({"inspect", folder / "missing"}), SystemError);
}

TEST(OptimizerDict, names_and_numbers_of_parameters_are_exchanged) {
  CheckpointPart part;
  part.tensors = {{"a.w.exp_avg", floats({1})}, {"b.exp_avg", floats({2})}};
  part.values = {
      {"type", "AdamW"},
      {"groups", {{{"lr", 0.1}, {"params", {"a.w", "c"}}}, {{"lr", 0.2}, {"params", {"b"}}}}}};
  ASSERT_TRUE(is_optimizer(part));
  const DictValue dict = optimizer_to_dict(part);
  const auto& state = std::get<DictValue>(dict.find("state")->data).items;
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(std::get<std::int64_t>(state[0].key.data), 0);
  EXPECT_EQ(std::get<std::int64_t>(state[1].key.data), 2);
  const CheckpointPart back = optimizer_from_dict(dict);
  EXPECT_EQ(back.values, part.values);
  EXPECT_EQ(floats_in(back.tensors.at("b.exp_avg")), (std::vector<float>{2}));
}

TEST(ElementValue, small_floats_are_read_as_their_formats_say) {
  const auto value = [](ElementType type, std::uint16_t bits) {
    return element_value(type, reinterpret_cast<const std::byte*>(&bits)).real();
  };
  EXPECT_EQ(value(ElementType::float16, 0x3c00), 1.0);
  EXPECT_EQ(value(ElementType::float16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(value(ElementType::bfloat16, 0xc000), -2.0);
  EXPECT_EQ(value(ElementType::float8_e4m3fn, 0x7e), 448.0);
  EXPECT_TRUE(std::isnan(value(ElementType::float8_e4m3fn, 0x7f)));
  EXPECT_EQ(value(ElementType::float8_e5m2, 0x7b), 57344.0);
  EXPECT_TRUE(std::isinf(value(ElementType::float8_e5m2, 0x7c)));
  EXPECT_EQ(value(ElementType::float8_e4m3fnuz, 0x7f), 240.0);
  EXPECT_TRUE(std::isnan(value(ElementType::float8_e4m3fnuz, 0x80)));
  EXPECT_EQ(value(ElementType::float8_e5m2fnuz, 0x7f), 57344.0);
  EXPECT_EQ(value(ElementType::float8_e8m0fnu, 127), 1.0);
}
