// What the translator needs without libtorch, for tests in Python.
//
//   translation_job made COUNT SEED                   pairs of the made-up language
//   translation_job pairs SOURCE TARGET PATH [PATH2]  pairs of files, by the names of the languages
//   translation_job train LINES FILE MIN_FREQUENCY VOCAB_SIZE   a word tokenizer from JSON strings,
//   one a line translation_job encode FILE LINES                 ids of JSON strings, one a line,
//   and what they decode to translation_job score LINES                       the four scores of
//   each line: [hypotheses, references]
//
// Prints JSON, a line for each pair, text or score.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "lockstep/sentence_pairs.h"
#include "lockstep/translation_metrics.h"
#include "lockstep/word_tokenizer.h"

using namespace lockstep;

namespace {

void print(const std::vector<SentencePair>& pairs) {
  for (const SentencePair& pair : pairs) {
    std::cout << nlohmann::json{pair.source, pair.target}.dump() << "\n";
  }
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

void train(const std::vector<std::string>& arguments) {
  std::vector<std::string> texts;
  for (const auto& line : lines_of(arguments.at(1))) texts.push_back(line.get<std::string>());
  WordTokenizer::train(texts, {.min_frequency = std::stoll(arguments.at(3)),
                               .vocab_size = std::stoll(arguments.at(4))})
      .save(arguments.at(2));
}

void encode(const std::vector<std::string>& arguments) {
  const WordTokenizer tokenizer = WordTokenizer::load(arguments.at(1));
  for (const auto& line : lines_of(arguments.at(2))) {
    const auto ids = tokenizer.encode(line.get<std::string>());
    std::cout << nlohmann::json{ids, tokenizer.decode(ids),
                                tokenizer.decode(ids, {.skip_special_tokens = false})}
                     .dump()
              << "\n";
  }
}

void score(const std::vector<std::string>& arguments) {
  for (const auto& line : lines_of(arguments.at(1))) {
    const auto hypotheses = line.at(0).get<std::vector<std::string>>();
    const auto references = line.at(1).get<std::vector<std::string>>();
    // As a text, because JSON has no infinity.
    std::printf("%.17g %.17g %.17g %.17g\n", bleu(hypotheses, references),
                chrf(hypotheses, references), character_error_rate(hypotheses, references),
                word_error_rate(hypotheses, references));
  }
}

int run(const std::vector<std::string>& arguments) {
  const std::string& command = arguments.at(0);
  if (command == "made") {
    print(embedded_sentence_pairs(std::stoull(arguments.at(1)), std::stoull(arguments.at(2))));
  } else if (command == "pairs") {
    print(read_sentence_pairs({.path = arguments.at(3),
                               .target_path = arguments.size() > 4 ? arguments[4] : "",
                               .source_language = arguments.at(1),
                               .target_language = arguments.at(2)}));
  } else if (command == "train") {
    train(arguments);
  } else if (command == "encode") {
    encode(arguments);
  } else if (command == "score") {
    score(arguments);
  } else {
    throw InvalidArgument(concat("there is no command '", command, "'"));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "translation_job: " << error.what() << "\n";
    return 1;
  }
}
