// Prints the records of a source, a JSON object a line, for tests in Python.
//
//   source_job PATH [--text] [--split NAME]
//   source_job --support                     "yes", or why Parquet and Arrow files cannot be read
#include <exception>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "lockstep/text_records.h"

using namespace lockstep;

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.at(0) == "--support") {
    const ArrowSupport support = arrow_support();
    std::cout << (support.available ? "yes" : support.reason) << "\n";
    return 0;
  }
  TextSourceOptions options;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i] == "--text") options.kind = TextSourceOptions::Kind::text;
    if (arguments[i] == "--split") options.split = arguments.at(++i);
  }
  try {
    TextSource(arguments[0], options).for_each([](TextRecord&& record) {
      nlohmann::json line = nlohmann::json::object();
      if (!record.instruction.empty()) line["instruction"] = record.instruction;
      if (!record.input.empty()) line["input"] = record.input;
      if (!record.output.empty()) line["output"] = record.output;
      if (!record.text.empty()) line["text"] = record.text;
      std::cout << line.dump() << "\n";
    });
  } catch (const std::exception& error) {
    std::cerr << "source_job: " << error.what() << "\n";
    return 1;
  }
}
