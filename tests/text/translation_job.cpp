// What the translator needs without libtorch, for tests in Python.
//
//   translation_job made COUNT SEED                   pairs of the made-up language
//   translation_job pairs SOURCE TARGET PATH [PATH2]  pairs of files, by the names of the languages
//
// Prints JSON, a line for each pair.
#include <exception>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "lockstep/sentence_pairs.h"

using namespace lockstep;

namespace {

void print(const std::vector<SentencePair>& pairs) {
  for (const SentencePair& pair : pairs) {
    std::cout << nlohmann::json{pair.source, pair.target}.dump() << "\n";
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
