#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/gpt2.h"
#include "lockstep/tokenizer.h"

namespace train_llm {

/// An instruction that was kept from training, and its answer.
struct Question {
  std::string task;
  std::string prompt;
  std::string answer;
};

/// What a model answers, letter for letter, to held-out instructions.
struct ExactMatch {
  struct Count {
    std::int64_t right = 0;
    std::int64_t asked = 0;
    double share() const { return asked == 0 ? 0 : static_cast<double>(right) / asked; }
  };
  Count all;
  std::map<std::string, Count> by_task;
  std::vector<std::string> answers;  // in the order of the questions

  /// "71 % of 400 (add 40 %, copy 98 %, ...)"
  std::string summary() const;
  nlohmann::json to_json() const;
};

/// Asks greedily. The model is on any device, of any type.
ExactMatch ask(lockstep::Gpt2& model, const lockstep::Tokenizer& tokenizer,
               const std::vector<Question>& questions);

/// Places of at most `count` questions, as many of each task as there is room for.
std::vector<std::size_t> some_of_each_task(const std::vector<Question>& questions,
                                           std::int64_t count);

/// Some questions with answers, a line each, as many of each task as there is room for.
std::string samples(const std::vector<Question>& questions, const ExactMatch& result,
                    std::int64_t count);

}  // namespace train_llm
