#include "cluster/brief.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::Brief;
using lockstep::decode_brief;
using lockstep::encode;
using lockstep::InvalidArgument;
using lockstep::LaunchCommand;

namespace {

Brief sample() {
  return {.version = "0.1.0",
          .host = "n2",
          .node_rank = 1,
          .min_nodes = 2,
          .max_nodes = 3,
          .endpoints = {{"10.0.0.1", 4711}, {"fd00::1", 4711}},
          .secret = "0123456789abcdef0123456789abcdef",
          .run_id = "job-1",
          .command = LaunchCommand::launch,
          .arguments = {"--hosts", "n1,n2", "train.py", "two words", "quote\"'\n"},
          .option_variables = {{"PET_MAX_RESTARTS", "3"}},
          .environment = {{"PATH", "/bin"}, {"EMPTY", ""}, {"BASH_FUNC_module%%", "() {\n}"}},
          .working_directory = "/data/run one",
          .workers = "4",
          .gpus = {0, 2}};
}

}  // namespace

TEST(Brief, what_is_encoded_comes_back_on_one_line) {
  const std::string text = encode(sample());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(decode_brief(text), sample());
  Brief plain = sample();
  plain.workers.reset();
  plain.gpus.clear();
  plain.command = LaunchCommand::run;
  EXPECT_EQ(decode_brief(encode(plain)), plain);
}

TEST(Brief, junk_is_refused) {
  const std::string good = encode(sample());
  const auto with = [&](const std::string& old, const std::string& other) {
    std::string text = good;
    const std::size_t at = text.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    return text.replace(at, old.size(), other);
  };
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("brief"),
        good.substr(0, good.size() / 2), with("\"format\":1", "\"format\":2"),
        with("\"node_rank\":1", "\"node_rank\":3"), with("\"node_rank\":1", "\"node_rank\":-1"),
        with("\"node_rank\":1", "\"node_rank\":\"1\""), with("\"min_nodes\":2", "\"min_nodes\":9"),
        with("\"launch\"", "\"snapshot\""), with("\"gpus\":[0,2]", "\"gpus\":[-1]"),
        with("\"gpus\":[0,2]", "\"gpus\":0"), with("\"EMPTY\":\"\"", "\"EMPTY\":1"),
        with("\"EMPTY\":\"\"", "\"\":\"\""), with("\"secret\"", "\"secrets\""),
        with("\"arguments\":[", "\"arguments\":[1,"),
        with("[\"10.0.0.1:4711\",\"[fd00::1]:4711\"]", "[]")}) {
    EXPECT_THROW(decode_brief(text), InvalidArgument) << text;
  }
}
