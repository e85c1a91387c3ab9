// What translate understands of its command line and its configuration file.
#include <fstream>

#include <gtest/gtest.h>

#include "apps/translate/command_line.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::InvalidArgument;
using lockstep::testing::TemporaryFolder;
using namespace translate;

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

}  // namespace

TEST(TranslateOptions, without_data_a_small_model_learns_the_pairs_inside_the_program) {
  const Options small = parse({});
  EXPECT_TRUE(small.data.empty());
  EXPECT_LT(small.d_model, 512);
  EXPECT_EQ(parse({"--d-model", "64"}).d_model, 64);
  const Options tutorial = parse({"--data", "x.tsv"});
  EXPECT_EQ(tutorial.d_model, 512);
  EXPECT_EQ(tutorial.layers, 6);
  EXPECT_EQ(tutorial.seq_len, 350);
  EXPECT_EQ(tutorial.epsilon, 1e-9);
  EXPECT_EQ(tutorial.label_smoothing, 0.1);
  EXPECT_EQ(tutorial.preload, "latest");
}

TEST(TranslateOptions, infer_takes_sentences_and_its_own_options) {
  const Invocation invocation =
      parse_command_line({"infer", "--run", "here", "--beam=4", "one two", "--", "--three"});
  EXPECT_EQ(invocation.command, Command::infer);
  EXPECT_EQ(invocation.options.run, "here");
  EXPECT_EQ(invocation.options.beam, 4);
  EXPECT_EQ(invocation.sentences, (std::vector<std::string>{"one two", "--three"}));
  EXPECT_EQ(refusal({"infer", "--d-model", "64"}).substr(0, 28), "there is no option --d-model");
  EXPECT_EQ(refusal({"infer", "--weights", "best"}),
            "--weights is \"best\"; it must be latest, or the number of an epoch");
}

TEST(TranslateOptions, what_cannot_be_is_refused_in_one_line) {
  EXPECT_EQ(refusal({"--d-model", "66"}),
            "--d-model is 66; it must be a multiple of --heads, which is 4");
  EXPECT_EQ(refusal({"--d-model", "15", "--heads", "1"}),
            "--d-model is 15; it must be even, for sines and cosines of the positions");
  EXPECT_EQ(refusal({"--preload", "newest"}),
            "--preload is \"newest\"; it must be latest, none or the number of an epoch");
  EXPECT_EQ(refusal({"--preload", "07"}), "accepted");
  EXPECT_EQ(refusal({"--target-data", "x"}), "--target-data needs --data, which has the sources");
  EXPECT_EQ(refusal({"--tokenizer", "bpe", "--vocab-size", "100"}).substr(0, 21),
            "--vocab-size is 100; ");
  EXPECT_EQ(refusal({"--tokenizer", "char"}),
            "--tokenizer is \"char\"; it must be one of word, bpe");
  EXPECT_EQ(refusal({"--seq-len", "2"}),
            "--seq-len is \"2\"; it must be a whole number of at least 3 and at most 1000000");
  EXPECT_EQ(refusal({"--track", "nothing"}).substr(0, 19), "--track is nothing:");
  EXPECT_EQ(refusal({"--lang-source", "en"}).substr(0, 57),
            "there is no option --lang-source; did you mean --lang-src");
  EXPECT_EQ(refusal({"--data", "x", "--lang-src", "it"}),
            "--lang-src and --lang-tgt are both \"it\"; they name the two sides of a pair");
  EXPECT_EQ(refusal({"--lang-tgt", "../it"}),
            "--lang-tgt is \"../it\"; a language has a name, and no '/' in it");
  EXPECT_EQ(refusal({"word"}), "\"word\" is one word too many (see --help)");
}

TEST(TranslateOptions, a_stored_configuration_is_the_run_again) {
  const TemporaryFolder folder;
  const Options before = parse({"--layers", "3", "--lr", "0.5", "--schedule", "noam"});
  const std::string path = folder / "config.json";
  std::ofstream(path) << effective_config(before).dump();
  const Options stored = read_stored_options(path);
  EXPECT_EQ(changed_options(before, stored), "");
  EXPECT_EQ(changed_options(before, parse({"--config", path})), "");
  EXPECT_EQ(changed_options(before, parse({"--config", path, "--layers", "2", "--epochs", "99"})),
            "--layers was 3 and is now 2");
}

TEST(TranslateOptions, the_help_names_every_option) {
  for (const Command command : {Command::train, Command::infer}) {
    const std::string help = help_text(command);
    for (const program_options::OptionSpec& option : all_options()) {
      const bool named = help.find("--" + std::string(option.name)) != std::string::npos;
      EXPECT_TRUE(named || !option.is_known_to(command)) << option.name;
    }
  }
}
