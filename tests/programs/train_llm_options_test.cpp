// What train_llm understands of its command line, its configuration file and names of the hub.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "apps/train_llm/command_line.h"
#include "apps/train_llm/hub.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::Environment;
using lockstep::InvalidArgument;
using lockstep::testing::TemporaryFolder;
using namespace train_llm;

namespace {

Options parse(const std::vector<std::string>& words) {
  return parse_command_line(words).options;
}

std::string refusal(const std::vector<std::string>& words) {
  try {
    parse_command_line(words);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

std::string write(const TemporaryFolder& folder, const std::string& name,
                  const std::string& content) {
  const std::string path = folder / name;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << content;
  return path;
}

std::string missing(HubKind kind, const std::string& name, const Environment& environment) {
  try {
    return find_local(kind, name, environment);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

}  // namespace

TEST(TrainLlmOptions, the_tutorials_command_line_means_what_it_means_there) {
  const Options options = parse({"--experiment-name",
                                 "gpt2-alpaca",
                                 "--dataset-name",
                                 "tatsu-lab/alpaca",
                                 "--model-name",
                                 "openai-community/gpt2",
                                 "--save-dir",
                                 "../outputs",
                                 "--seed",
                                 "3",
                                 "--num-epochs",
                                 "2",
                                 "--lr",
                                 "1e-4",
                                 "--batch-size",
                                 "8",
                                 "--log-freq",
                                 "10",
                                 "--ckpt-freq",
                                 "50",
                                 "--seq-length",
                                 "512"});
  EXPECT_EQ(options.experiment_name, "gpt2-alpaca");
  EXPECT_EQ(options.dataset_name, "tatsu-lab/alpaca");
  EXPECT_EQ(options.model_name, "openai-community/gpt2");
  EXPECT_EQ(options.save_dir, "../outputs");
  EXPECT_EQ(options.seed, 3);
  EXPECT_EQ(options.num_epochs, 2);
  EXPECT_EQ(options.lr, 1e-4);
  EXPECT_EQ(options.batch_size, 8);
  EXPECT_EQ(options.log_freq, 10);
  EXPECT_EQ(options.ckpt_freq, 50);
  EXPECT_EQ(options.seq_length, 512);
}

TEST(TrainLlmOptions, its_defaults_are_the_tutorials) {
  const Options options = parse({"-e", "x", "-d", "data", "-m", "model"});
  EXPECT_EQ(options.num_epochs, 100);
  EXPECT_EQ(options.lr, 3e-5);
  EXPECT_EQ(options.batch_size, 1);
  EXPECT_EQ(options.log_freq, 100);
  EXPECT_EQ(options.ckpt_freq, 500);
  EXPECT_EQ(options.seq_length, 1024);
  EXPECT_EQ(options.dtype, "auto");
  EXPECT_EQ(options.schedule, "cosine");
  EXPECT_EQ(options.schedule_steps, 1000);
  EXPECT_EQ(options.min_lr_factor, 0.01);
}

TEST(TrainLlmOptions, names_can_be_spelled_in_several_ways) {
  EXPECT_EQ(parse({"-d", "x", "--batch_size=4"}).batch_size, 4);
  EXPECT_EQ(parse({"-d", "x", "-b4"}).batch_size, 4);
  EXPECT_EQ(parse({"-d", "x", "-b=4"}).batch_size, 4);
  EXPECT_EQ(parse({"-d", "x", "--batch", "4"}).batch_size, 4);
  EXPECT_TRUE(parse({"-d", "x", "--loss_on_answers"}).loss_on_answers);
  EXPECT_FALSE(parse({"--loss-on-answers=false"}).loss_on_answers);
}

TEST(TrainLlmOptions, without_data_and_model_the_embedded_ones_have_their_own_defaults) {
  EXPECT_TRUE(parse_command_line({}).embedded);
  EXPECT_EQ(parse({}).dtype, "fp32");
  EXPECT_EQ(parse({"--dtype", "bf16"}).dtype, "bf16");
  EXPECT_FALSE(parse_command_line({"-d", "x"}).embedded);
  EXPECT_FALSE(parse_command_line({"--model", "tiny"}).embedded);
}

TEST(TrainLlmOptions, ways_to_track_a_run_are_a_list) {
  EXPECT_EQ(parse({"-d", "x", "--track", "tensorboard,wandb"}).track, "tensorboard,wandb");
  EXPECT_EQ(refusal({"--track", "jsonl,csv"}),
            "--track is jsonl,csv: 'csv' is no way to track a run; there are jsonl, tensorboard, "
            "wandb");
}

TEST(TrainLlmOptions, what_cannot_be_is_refused_in_one_line) {
  EXPECT_EQ(refusal({"--lr", "fast"}),
            "--lr is \"fast\"; it must be a number of at least 0 and at most 1000000");
  EXPECT_EQ(refusal({"-b", "0"}),
            "-b is \"0\"; it must be a whole number of at least 1 and at most 1000000");
  EXPECT_EQ(refusal({"-b", "99999999999999999999"}),
            "-b is \"99999999999999999999\"; it must be a whole number of at least 1 and at most "
            "1000000");
  EXPECT_EQ(refusal({"--lr", "nan"}),
            "--lr is \"nan\"; it must be a number of at least 0 and at most 1000000");
  EXPECT_EQ(refusal({"--dtype", "int8"}),
            "--dtype is \"int8\"; it must be one of auto, bf16, bf16-autocast, bf16-mixed, fp16, "
            "fp32");
  EXPECT_EQ(refusal({"--dtype", "bf16-mixed"}),
            "--dtype is bf16-mixed, which is for sharded runs; give --shard 1, 2 or 3, or --dtype "
            "bf16-autocast");
  EXPECT_EQ(parse({"--dtype", "bf16-mixed", "--shard", "2"}).shard, 2);
  EXPECT_EQ(refusal({"--grad-acum", "2"}),
            "there is no option --grad-acum; did you mean --grad-accum? (see --help)");
  EXPECT_EQ(refusal({"--num", "2"}), "--num can mean --num-workers or --num-epochs");
  EXPECT_EQ(refusal({"--lr"}), "--lr needs a value: RATE");
  EXPECT_EQ(refusal({"hello"}), "\"hello\" is one word too many (see --help)");
  EXPECT_NE(refusal({"--model", "tiny", "-m", "dir"}).find("are both given"), std::string::npos);
  EXPECT_NE(refusal({"--warmup", "2000", "-d", "x"}).find("--warmup is 2000"), std::string::npos);
  EXPECT_EQ(refusal({"generate"}), "generate needs either --prompt or --instruction");
  EXPECT_EQ(refusal({"export"}), "export needs the folder to write: train_llm export DIR");
}

TEST(TrainLlmOptions, a_short_try_of_the_embedded_instructions_has_a_short_warmup) {
  EXPECT_EQ(parse({}).warmup, 50);
  EXPECT_EQ(parse({"--max-steps", "20"}).warmup, 10);
  EXPECT_EQ(parse({"--max-steps", "1"}).warmup, 0);
  EXPECT_EQ(parse({"--max-steps", "20", "--warmup", "19"}).warmup, 19);
}

TEST(TrainLlmOptions, a_configuration_file_counts_less_than_the_command_line) {
  const TemporaryFolder folder;
  const std::string file =
      write(folder, "c.json", R"({"lr": 0.5, "batch_size": 3, "dataset-name": "d"})");
  const Options options = parse({"--config", file, "--lr", "0.25"});
  EXPECT_EQ(options.lr, 0.25);
  EXPECT_EQ(options.batch_size, 3);
  EXPECT_EQ(options.dataset_name, "d");
  EXPECT_FALSE(parse_command_line({"--config", file}).embedded);
}

TEST(TrainLlmOptions, what_is_wrong_with_a_configuration_file_is_said_with_its_key) {
  const TemporaryFolder folder;
  const auto with = [&](const std::string& content) {
    return refusal({"--config", write(folder, "c.json", content)});
  };
  const std::string path = folder / "c.json";
  EXPECT_EQ(with(R"({"learning-rat": 1})"),
            "there is no option 'learning-rat', which " + path + " sets (see --help)");
  EXPECT_EQ(with(R"({"bach-size": 1})"), "there is no option 'bach-size', which " + path +
                                             " sets; did you mean batch-size? (see --help)");
  EXPECT_EQ(with(R"({"lr": "high"})"),
            path + ": lr is \"high\"; it must be a number of at least 0 and at most 1000000");
  EXPECT_EQ(with(R"({"seed": 18446744073709551615})"),
            path +
                ": seed is 18446744073709551615; it must be a whole number of at least 0 and at "
                "most 9000000000000000");
  EXPECT_EQ(with(R"({"from-scratch": 1})"), path + ": from-scratch is 1; it must be true or false");
  EXPECT_NE(with("{").find("is no JSON"), std::string::npos);
  EXPECT_NE(with("[]").find("holds no JSON object"), std::string::npos);
}

TEST(TrainLlmOptions, the_effective_configuration_is_read_again_as_it_was) {
  const TemporaryFolder folder;
  const Options options = parse({"-d", "x", "--lr", "0.125", "--packing", "single", "-b", "7"});
  const std::string file = write(folder, "config.json", effective_config(options).dump());
  EXPECT_EQ(effective_config(parse({"--config", file})), effective_config(options));
}

TEST(TrainLlmOptions, help_names_every_option_and_its_default) {
  const std::string help = help_text(Command::train);
  for (const OptionSpec& option : all_options()) {
    if (!option.is_known_to(Command::train)) continue;
    EXPECT_NE(help.find(lockstep::concat("--", option.name)), std::string::npos) << option.name;
  }
  EXPECT_NE(help.find("default 3e-05"), std::string::npos);
  EXPECT_NE(help_text(Command::generate).find("--top-p"), std::string::npos);
  EXPECT_EQ(help_text(Command::generate).find("--grad-clip"), std::string::npos);
}

TEST(TrainLlmHub, names_are_paths_first) {
  const TemporaryFolder folder;
  const Environment nothing({});
  EXPECT_EQ(find_local(HubKind::model, folder.path().string(), nothing), folder.path().string());
  EXPECT_EQ(missing(HubKind::dataset, "./no/such/file", nothing),
            "--dataset-name is \"./no/such/file\", and there is no such file or directory");
  // A slip in the name of a file is not to be fetched.
  EXPECT_EQ(missing(HubKind::dataset, "dta.jsonl", nothing),
            "--dataset-name is \"dta.jsonl\", and there is no such file or directory");
}

TEST(TrainLlmHub, the_cache_of_the_hubs_tools_is_searched) {
  const TemporaryFolder folder;
  const Environment environment({{"HF_HOME", folder.path().string()}});
  const std::string model = "hub/models--openai-community--gpt2";
  write(folder, model + "/snapshots/old/config.json", "{}");
  write(folder, model + "/snapshots/new/config.json", "{}");
  write(folder, model + "/refs/main", "old");
  EXPECT_EQ(find_local(HubKind::model, "openai-community/gpt2", environment),
            folder / (model + "/snapshots/old"));
  write(folder, "hub/datasets--tatsu-lab--alpaca/snapshots/abc/data.json", "[]");
  EXPECT_EQ(find_local(HubKind::dataset, "tatsu-lab/alpaca", environment),
            folder / "hub/datasets--tatsu-lab--alpaca/snapshots/abc");
  write(folder, "datasets/org___made/default/0.0.0/hash/dataset_info.json", "{}");
  EXPECT_EQ(find_local(HubKind::dataset, "org/made", environment),
            folder / "datasets/org___made/default/0.0.0/hash");
}

TEST(TrainLlmHub, what_is_not_there_is_said_with_the_command_that_fetches_it) {
  const TemporaryFolder folder;
  const Environment environment({{"HF_HUB_CACHE", folder / "hub"}});
  EXPECT_EQ(missing(HubKind::model, "openai-community/gpt2", environment),
            "--model-name is \"openai-community/gpt2\", which is no directory here and not in the "
            "hub's cache, " +
                (folder / "hub") +
                "; this program fetches nothing: where there is a network, `huggingface-cli "
                "download openai-community/gpt2` puts it there");
  EXPECT_NE(missing(HubKind::dataset, "tatsu-lab/alpaca", environment)
                .find("huggingface-cli download --repo-type dataset tatsu-lab/alpaca"),
            std::string::npos);
}
