#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/error.h"
#include "lockstep/gpt2.h"
#include "lockstep/torch_file.h"
#include "tests/core/temporary_folder.h"

using namespace lockstep;

namespace {

namespace fs = std::filesystem;

Gpt2Config two_layers() {
  return {.vocab_size = 50, .n_positions = 16, .n_embd = 16, .n_layer = 2, .n_head = 2};
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void put_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

void expect_same_weights(const Gpt2& a, const Gpt2& b) {
  const auto left = a->named_parameters(), right = b->named_parameters();
  ASSERT_EQ(left.size(), right.size());
  for (const auto& item : left) EXPECT_TRUE(item.value().equal(right[item.key()])) << item.key();
}

// A saved model whose files a test then damages.
class Gpt2Files : public ::testing::Test {
 protected:
  Gpt2Files() : model_(two_layers(), Gpt2Options{.seed = 1}) { save_gpt2(model_, path("")); }

  std::string path(const std::string& name) const { return (folder_.path() / "m" / name).string(); }

  void change(const std::function<void(std::map<std::string, at::Tensor>&)>& edit) {
    auto tensors = load_safetensors(path("model.safetensors"));
    edit(tensors);
    save_safetensors(path("model.safetensors"), tensors);
  }

  // The message, which must be one line.
  std::string refusal() {
    try {
      load_gpt2(path(""));
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      return message;
    }
    return "it was loaded";
  }

  void expect_refusal(const std::vector<std::string>& parts) {
    const std::string message = refusal();
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
    }
  }

  lockstep::testing::TemporaryFolder folder_;
  Gpt2 model_;
};

TEST_F(Gpt2Files, come_back_with_the_same_bits_and_shape) {
  const Gpt2 loaded = load_gpt2(path(""));
  EXPECT_EQ(loaded->config(), two_layers());
  expect_same_weights(loaded, model_);
  EXPECT_TRUE(fs::exists(path("generation_config.json")));
}

TEST_F(Gpt2Files, every_key_of_the_configuration_comes_back) {
  const Gpt2Config unusual{.vocab_size = 33,
                           .n_positions = 8,
                           .n_embd = 12,
                           .n_layer = 1,
                           .n_head = 3,
                           .n_inner = 20,
                           .activation = Gpt2Activation::silu,
                           .embd_pdrop = 0.25,
                           .attn_pdrop = 0.5,
                           .resid_pdrop = 0.125,
                           .layer_norm_epsilon = 1e-6,
                           .initializer_range = 0.5,
                           .scale_attn_weights = false,
                           .scale_attn_by_inverse_layer_idx = true,
                           .tie_word_embeddings = false,
                           .bos_token_id = 3,
                           .eos_token_id = std::nullopt};
  save_gpt2(Gpt2(unusual), path("other"));
  EXPECT_EQ(load_gpt2(path("other"))->config(), unusual);
}

TEST_F(Gpt2Files, shards_and_single_files_replace_each_other) {
  save_gpt2(model_, path(""), {.max_shard_bytes = 4000});
  EXPECT_FALSE(fs::exists(path("model.safetensors")));
  EXPECT_TRUE(fs::exists(path("model.safetensors.index.json")));
  expect_same_weights(load_gpt2(path("")), model_);
  const Gpt2 other(two_layers(), Gpt2Options{.seed = 2});
  save_gpt2(other, path(""), {.max_shard_bytes = 8000});
  expect_same_weights(load_gpt2(path("")), other);
  save_gpt2(model_, path(""));
  expect_same_weights(load_gpt2(path("")), model_);
  int files = 0;
  for (const auto& entry : fs::directory_iterator(path(""))) files += entry.is_regular_file();
  EXPECT_EQ(files, 3);  // nothing of the shards is left
}

TEST_F(Gpt2Files, bfloat16_weights_are_written_as_such_and_read_as_float32) {
  model_->to(torch::kBFloat16);
  save_gpt2(model_, path(""));
  EXPECT_NE(text_of(path("config.json")).find("\"dtype\": \"bfloat16\""), std::string::npos);
  EXPECT_EQ(load_safetensors(path("model.safetensors")).begin()->second.scalar_type(),
            torch::kBFloat16);
  const Gpt2 loaded = load_gpt2(path(""));
  EXPECT_TRUE(loaded->named_parameters()["wte.weight"].equal(
      model_->named_parameters()["wte.weight"].to(torch::kFloat)));
}

TEST_F(Gpt2Files, names_without_the_prefix_and_old_masks_are_read) {
  change([](auto& tensors) {
    std::map<std::string, at::Tensor> bare;
    for (const auto& [name, tensor] : tensors) bare[name.substr(12)] = tensor;  // "transformer."
    bare["h.0.attn.bias"] = torch::ones({1, 1, 16, 16});
    bare["h.1.attn.masked_bias"] = torch::tensor(-1e4f);
    bare["lm_head.weight"] = bare.at("wte.weight").clone();
    tensors = bare;
  });
  expect_same_weights(load_gpt2(path("")), model_);
}

TEST_F(Gpt2Files, python_files_are_read_whole_and_in_shards) {
  const auto tensors = load_safetensors(path("model.safetensors"));
  fs::remove(path("model.safetensors"));
  save_pt(path("pytorch_model.bin"), tensors);
  expect_same_weights(load_gpt2(path("")), model_);

  fs::remove(path("pytorch_model.bin"));
  std::map<std::string, at::Tensor> first, second;
  nlohmann::json index;
  for (const auto& [name, tensor] : tensors) {
    auto& shard = name < "transformer.h.1" ? first : second;
    shard[name] = tensor;
    index["weight_map"][name] = &shard == &first ? "a.bin" : "b.bin";
  }
  save_pt(path("a.bin"), first);
  save_pt(path("b.bin"), second);
  put_text(path("pytorch_model.bin.index.json"), index.dump());
  expect_same_weights(load_gpt2(path("")), model_);
}

TEST_F(Gpt2Files, a_truncated_file_is_refused) {
  const std::string whole = text_of(path("model.safetensors"));
  put_text(path("model.safetensors"), whole.substr(0, whole.size() - 1000));
  expect_refusal({path("model.safetensors")});
  put_text(path("model.safetensors"), whole.substr(0, 5));
  expect_refusal({path("model.safetensors")});
}

TEST_F(Gpt2Files, a_tensor_of_another_shape_is_refused) {
  change([](auto& tensors) {
    tensors["transformer.h.1.mlp.c_fc.weight"] = torch::zeros({64, 16});
  });
  expect_refusal({path("model.safetensors"), "transformer.h.1.mlp.c_fc.weight", "[64, 16]",
                  "[16, 64]", "config.json"});
}

TEST_F(Gpt2Files, a_missing_tensor_is_refused) {
  change([](auto& tensors) { tensors.erase("transformer.h.0.ln_2.bias"); });
  expect_refusal({path("model.safetensors"), "lacks tensor 'h.0.ln_2.bias'"});
}

TEST_F(Gpt2Files, an_unexpected_tensor_is_refused) {
  change([](auto& tensors) { tensors["transformer.h.2.ln_1.weight"] = torch::zeros({16}); });
  expect_refusal({path("model.safetensors"), "no tensor 'transformer.h.2.ln_1.weight'"});
}

TEST_F(Gpt2Files, a_tensor_under_two_names_is_refused) {
  change([](auto& tensors) { tensors["ln_f.bias"] = torch::zeros({16}); });
  expect_refusal({path("model.safetensors"), "ln_f.bias", "twice"});
}

TEST_F(Gpt2Files, an_untied_head_must_be_there) {
  const std::string config = text_of(path("config.json"));
  put_text(path("config.json"),
           std::regex_replace(config, std::regex("\"tie_word_embeddings\": true"),
                              "\"tie_word_embeddings\": false"));
  expect_refusal({path("model.safetensors"), "lacks tensor 'lm_head.weight'"});
}

TEST_F(Gpt2Files, a_missing_shard_is_named_with_its_index) {
  save_gpt2(model_, path(""), {.max_shard_bytes = 4000});
  std::string shard;
  for (const auto& entry : fs::directory_iterator(path(""))) {
    if (entry.path().filename().string().starts_with("model-00002")) shard = entry.path().string();
  }
  fs::remove(shard);
  expect_refusal({shard.substr(shard.rfind('/')), "is missing", "model.safetensors.index.json"});
}

TEST_F(Gpt2Files, an_index_that_leads_elsewhere_is_refused) {
  fs::rename(path("model.safetensors"), path("x.safetensors"));
  put_text(path("model.safetensors.index.json"), R"({"weight_map": {"a": "../m/x.safetensors"}})");
  expect_refusal({path("model.safetensors.index.json"), "../m/x.safetensors"});
  put_text(path("model.safetensors.index.json"), "{}");
  expect_refusal({path("model.safetensors.index.json"), "weight_map"});
  put_text(path("model.safetensors.index.json"), "{");
  expect_refusal({path("model.safetensors.index.json")});
}

TEST_F(Gpt2Files, a_python_file_without_weights_is_refused) {
  fs::remove(path("model.safetensors"));
  put_text(path("pytorch_model.bin"), "not a zip");
  expect_refusal({path("pytorch_model.bin")});
  save_pt(path("pytorch_model.bin"), PyValue("no state_dict"));
  expect_refusal({path("pytorch_model.bin")});
}

TEST_F(Gpt2Files, a_folder_without_weights_is_refused) {
  fs::remove(path("model.safetensors"));
  expect_refusal({path(""), "no weights"});
  EXPECT_THROW(load_gpt2(path("nowhere")), InvalidArgument);
}

TEST_F(Gpt2Files, a_configuration_that_cannot_be_computed_names_file_and_key) {
  const std::string config = text_of(path("config.json"));
  const auto with = [&](const char* from, const char* to) {
    put_text(path("config.json"), std::regex_replace(config, std::regex(from), to));
    const std::string message = refusal();
    EXPECT_NE(message.find(path("config.json")), std::string::npos) << message;
    return message;
  };
  EXPECT_NE(with("\"gpt2\"", "\"llama\"").find("\"model_type\" is \"llama\""), std::string::npos);
  EXPECT_NE(with("gelu_new", "mish").find("\"activation_function\" is \"mish\""),
            std::string::npos);
  EXPECT_NE(with("\"n_head\": 2", "\"n_head\": 3").find("n_head is 3"), std::string::npos);
  EXPECT_NE(with("\"n_head\": 2", "\"n_head\": \"2\"").find("a whole number"), std::string::npos);
  EXPECT_NE(with("\"n_layer\": 2", "\"n_layer\": 0").find("n_layer is 0"), std::string::npos);
  EXPECT_NE(with("\\{", "").find("no JSON object"), std::string::npos);
}

}  // namespace
