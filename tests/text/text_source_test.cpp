#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/text_records.h"
#include "tests/core/temporary_folder.h"
#include "tests/text/support.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

using Records = std::vector<TextRecord>;

const TextRecord kAdd{.instruction = "Add.", .input = "1 2", .output = "3"};
const TextRecord kGreet{.instruction = "Greet.", .input = "", .output = "Hello"};

Records read(const std::string& path, const TextSourceOptions& options = {}) {
  return TextSource(path, options).read_all();
}

std::string refusal_of(const std::string& path, const TextSourceOptions& options = {}) {
  return refusal([&] { read(path, options); });
}

constexpr const char* kAddJson = R"({"instruction": "Add.", "input": "1 2", "output": "3"})";
constexpr const char* kGreetJson =
    R"({"instruction": "Greet.", "output": "Hello", "other": [1, {}]})";

}  // namespace

TEST(TextSource, reads_a_list_of_objects) {
  const TemporaryFolder folder;
  write_text(folder / "a.json", concat("[", kAddJson, ",\n", kGreetJson, "]"));
  EXPECT_EQ(read(folder / "a.json"), (Records{kAdd, kGreet}));
}

TEST(TextSource, reads_an_object_a_line_whatever_the_ending) {
  const TemporaryFolder folder;
  for (const std::string name : {"a.jsonl", "a.json", "a.ndjson"}) {
    write_text(folder / name, concat(kAddJson, "\r\n\n", kGreetJson));
    EXPECT_EQ(read(folder / name), (Records{kAdd, kGreet})) << name;
  }
}

TEST(TextSource, takes_texts_where_records_have_them) {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", R"({"text": "one"}
{"text": "two", "instruction": "not looked at any more", "output": "x"})");
  EXPECT_EQ(read(folder / "a.jsonl"), (Records{{.text = "one"}, {.text = "two"}}));
  write_text(folder / "b.jsonl", R"({"text": "whole", "instruction": "i", "output": "o"})");
  EXPECT_EQ(read(folder / "b.jsonl"), (Records{{.instruction = "i", .output = "o"}}));
  EXPECT_EQ(read(folder / "b.jsonl", {.kind = TextSourceOptions::Kind::text}),
            (Records{{.text = "whole"}}));
}

TEST(TextSource, a_name_with_a_dot_is_a_field_in_an_object) {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", R"({"meta": {"body": "one", "n": 1}, "id": 1}
{"meta.body": "two", "meta": {"body": "not this"}})");
  const TextSourceOptions options{.kind = TextSourceOptions::Kind::text, .text_field = "meta.body"};
  EXPECT_EQ(read(folder / "a.jsonl", options), (Records{{.text = "one"}, {.text = "two"}}));
  write_text(folder / "b.jsonl", R"({"meta": {"n": 1, "title": "x"}, "empty": {}})");
  EXPECT_TRUE(has(refusal_of(folder / "b.jsonl", options),
                  "has no field 'meta.body' (it has: empty, meta.n, meta.title)"));
  write_text(folder / "c.jsonl", R"({"meta": "text"})");
  EXPECT_TRUE(has(refusal_of(folder / "c.jsonl", options), "has no field 'meta.body'"));
}

TEST(TextSource, tables_of_pairs_are_no_documents) {
  const TemporaryFolder folder;
  write_text(folder / "pairs.tsv", "one\tuno\n");
  EXPECT_TRUE(has(refusal_of(folder / "pairs.tsv"), "has no known ending"));
  std::filesystem::create_directory(folder / "both");
  write_text(folder / "both/pairs.tsv", "one\tuno\n");
  write_text(folder / "both/texts.txt", "a text");
  EXPECT_EQ(read(folder / "both"), (Records{{.text = "a text"}}));
}

TEST(TextSource, fields_may_have_other_names) {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", R"({"question": "Add.", "context": "1 2", "response": "3"})");
  EXPECT_EQ(
      read(folder / "a.jsonl",
           {.instruction_field = "question", .input_field = "context", .output_field = "response"}),
      Records{kAdd});
}

TEST(TextSource, plain_texts_are_divided_as_asked) {
  using Documents = TextSourceOptions::Documents;
  const TemporaryFolder folder;
  const std::string path = folder / "a.txt";
  write_text(path, "one\ntwo\n\nthree\n<|endoftext|>\n\nfour");
  EXPECT_EQ(read(path), (Records{{.text = "one\ntwo\n\nthree\n"}, {.text = "\nfour"}}));
  EXPECT_EQ(read(path, {.documents = Documents::line}), (Records{{.text = "one"},
                                                                 {.text = "two"},
                                                                 {.text = "three"},
                                                                 {.text = "<|endoftext|>"},
                                                                 {.text = "four"}}));
  EXPECT_EQ(
      read(path, {.documents = Documents::paragraph}),
      (Records{{.text = "one\ntwo\n"}, {.text = "three\n<|endoftext|>\n"}, {.text = "four"}}));
}

TEST(TextSource, bad_records_are_named_with_file_and_number) {
  const TemporaryFolder folder;
  const std::string lines = folder / "a.jsonl";
  const auto refused = [&](const std::string& second) {
    write_text(lines, concat(kAddJson, "\n\n", second, "\n", kGreetJson));
    const std::string message = refusal_of(lines);
    EXPECT_TRUE(has(message, concat("'", lines, "': record 2"))) << message;
    return message;
  };
  EXPECT_TRUE(
      has(refused(R"({"instruction": "x"})"), "has no field 'output' (it has: instruction)"));
  EXPECT_TRUE(has(refused(R"({"instruction": "x", "output": 3})"), "'output' of type number"));
  EXPECT_TRUE(has(refused(R"({"instruction": "", "output": ""})"), "is empty"));
  EXPECT_TRUE(has(refused(R"({"instruction": "x", )"), "(line 3) is not JSON"));
  EXPECT_TRUE(has(refused("{\"instruction\": \"\xff\", \"output\": \"\"}"), "is not JSON"));
  EXPECT_TRUE(has(refused(R"({"instruction": "x", "output": 1e999})"), "a number too large"));
  EXPECT_TRUE(has(refused("17"), "is number and not an object"));
  const std::string list = folder / "a.json";
  write_text(list, concat("[", kAddJson, ", {\"instruction\": \"x\"}]"));
  EXPECT_TRUE(has(refusal_of(list), "record 2 has no field 'output'"));
  write_text(list, concat("[", kAddJson, ", {\"instruction\": \"x"));
  EXPECT_TRUE(has(refusal_of(list), "record 2 is not JSON, or the file was cut short"));
  write_text(list, R"([{"a": 1}])");
  EXPECT_TRUE(has(refusal_of(list),
                  "record 1 has neither the fields 'instruction' and 'output' nor "
                  "'text' (it has: a)"));
}

TEST(TextSource, a_data_set_without_records_is_refused) {
  const TemporaryFolder folder;
  write_text(folder / "a.json", "[]");
  EXPECT_TRUE(has(refusal_of(folder / "a.json"), "is empty: it has no record"));
  write_text(folder / "b.txt", "\n \n");
  EXPECT_TRUE(has(refusal_of(folder / "b.txt"), "is empty"));
  EXPECT_TRUE(has(refusal([] { TextSource(Records{}).read_all(); }), "is empty"));
  EXPECT_TRUE(has(refusal_of(folder / "none"), "does not exist"));
  std::filesystem::create_directory(folder / "c");
  EXPECT_TRUE(has(refusal_of(folder / "c"), "has no data"));
  write_text(folder / "d.csv", "x");
  EXPECT_TRUE(has(refusal_of(folder / "d.csv"), "no known ending"));
}

TEST(TextSource, a_folder_gives_the_files_of_a_split_in_order) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "data");
  write_text(folder / "README.md", "a card");
  write_text(folder / "dataset_infos.json", "{}");
  write_text(folder / "data/train-00001-of-00002.jsonl", kGreetJson);
  write_text(folder / "data/train-00000-of-00002.jsonl", kAddJson);
  write_text(folder / "data/valid.jsonl", kGreetJson);
  EXPECT_EQ(read(folder.path()), (Records{kAdd, kGreet}));
  EXPECT_EQ(read(folder.path(), {.split = "validation"}), Records{kGreet});
  EXPECT_TRUE(has(refusal_of(folder.path(), {.split = "test"}),
                  "has no split 'test'; it has: train, validation"));
}

TEST(TextSource, a_file_alone_is_its_own_split) {
  const TemporaryFolder folder;
  write_text(folder / "test.jsonl", kAddJson);
  EXPECT_EQ(read(folder / "test.jsonl"), Records{kAdd});
  EXPECT_EQ(read(folder / "test.jsonl", {.split = "test"}), Records{kAdd});
  EXPECT_TRUE(has(refusal_of(folder / "test.jsonl", {.split = "validation"}),
                  "has no split 'validation'; it has: test"));
}

TEST(TextSource, files_that_name_no_split_are_for_training) {
  const TemporaryFolder folder;
  write_text(folder / "b.txt", "second");
  write_text(folder / "a.txt", "first");
  EXPECT_EQ(read(folder.path()), (Records{{.text = "first"}, {.text = "second"}}));
  EXPECT_TRUE(has(refusal_of(folder.path(), {.split = "test"}), "it has: train"));
}

TEST(TextSource, its_fingerprint_follows_the_content) {
  const TemporaryFolder folder;
  write_text(folder / "a.jsonl", kAddJson);
  write_text(folder / "b.jsonl", kAddJson);
  write_text(folder / "c.jsonl", kGreetJson);
  const auto of = [&](const char* name, const TextSourceOptions& options = {}) {
    return TextSource(folder / name, options).fingerprint();
  };
  EXPECT_EQ(of("a.jsonl"), of("b.jsonl"));
  EXPECT_NE(of("a.jsonl"), of("c.jsonl"));
  EXPECT_NE(of("a.jsonl"), of("a.jsonl", {.text_field = "body"}));
  EXPECT_NE(TextSource(Records{kAdd}).fingerprint(), TextSource(Records{kGreet}).fingerprint());
}

TEST(PromptTemplate, fills_in_the_fields_once) {
  const PromptTemplate prompt = PromptTemplate::brief();
  EXPECT_EQ(prompt.prompt_of(kAdd), "Add. 1 2\n");
  EXPECT_EQ(prompt.prompt_of(kGreet), "Greet.\n");
  EXPECT_EQ(prompt.prompt_of({.text = "plain"}), "");
  EXPECT_EQ(prompt.prompt_of({.instruction = "{input}", .input = "{instruction}", .output = "x"}),
            "{input} {instruction}\n");
  EXPECT_TRUE(has(PromptTemplate::alpaca().prompt_of(kAdd),
                  "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n"));
  EXPECT_FALSE(has(PromptTemplate::alpaca().prompt_of(kGreet), "### Input"));
}
