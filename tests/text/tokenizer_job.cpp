// The tokenizer as a program, for tests and benchmarks in Python.
//
// tokenizer_job encode TOKENIZER TEXTS IDS [threads [plain|special [warm]]]
//     prints seconds; plain: special tokens are text; warm: encodes twice and times the second
// tokenizer_job decode TOKENIZER IDS TEXTS
// tokenizer_job train TEXTS VOCAB_SIZE MIN_FREQUENCY FOLDER
// tokenizer_job resave TOKENIZER FOLDER
//
// TEXTS and IDS are files of records: a length as 8 bytes, then that many bytes or ids of 4 bytes.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/tokenizer.h"

using namespace lockstep;

namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InvalidArgument(concat("cannot open ", path));
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename Element>
std::vector<std::basic_string_view<Element>> records(const std::string& content) {
  std::vector<std::basic_string_view<Element>> found;
  for (std::size_t at = 0; at + 8 <= content.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, content.data() + at, 8);
    found.emplace_back(reinterpret_cast<const Element*>(content.data() + at + 8), length);
    at += 8 + length * sizeof(Element);
  }
  return found;
}

template <typename Elements>
void write_record(std::ofstream& file, const Elements& elements) {
  const std::uint64_t length = elements.size();
  file.write(reinterpret_cast<const char*>(&length), 8);
  file.write(reinterpret_cast<const char*>(elements.data()),
             static_cast<std::streamsize>(length * sizeof(elements[0])));
}

int run(const std::vector<std::string>& arguments) {
  const std::string& command = arguments.at(0);
  if (command == "encode") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    const std::string content = read_all(arguments.at(2));
    const auto texts = records<char>(content);
    const int threads = arguments.size() > 4 ? std::stoi(arguments[4]) : 1;
    const bool plain = arguments.size() > 5 && arguments[5] == "plain";
    const EncodeBatchOptions options{.encode = {.split_special_tokens = plain}, .threads = threads};
    if (arguments.size() > 6 && arguments[6] == "warm") tokenizer.encode_batch(texts, options);
    const auto began = std::chrono::steady_clock::now();
    const auto ids = tokenizer.encode_batch(texts, options);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    std::ofstream out(arguments.at(3), std::ios::binary);
    for (const auto& text : ids) write_record(out, text);
    std::cout << took.count() << "\n";
    return 0;
  }
  if (command == "decode") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    const std::string content = read_all(arguments.at(2));
    std::ofstream out(arguments.at(3), std::ios::binary);
    for (const auto& ids : records<std::int32_t>(content)) {
      write_record(out, tokenizer.decode({ids.data(), ids.size()}));
    }
    return 0;
  }
  if (command == "train") {
    const std::string content = read_all(arguments.at(1));
    train_tokenizer(records<char>(content), {.vocab_size = std::stoll(arguments.at(2)),
                                             .min_frequency = std::stoll(arguments.at(3))})
        .save(arguments.at(4));
    return 0;
  }
  if (command == "resave") {
    Tokenizer::load(arguments.at(1)).save(arguments.at(2));
    return 0;
  }
  std::cerr << "tokenizer_job: unknown command " << command << "\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "tokenizer_job: " << error.what() << "\n";
    return 1;
  }
}
