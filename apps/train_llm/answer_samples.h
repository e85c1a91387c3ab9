#pragma once

#include <cstdint>
#include <vector>

#include "exact_match.h"
#include "lockstep/callback.h"

namespace train_llm {

/// Lets the model answer a few held-out instructions after each validation and at the end, and
/// hands the answers to the tracker, where the board and TensorBoard show them. Rank 0's alone.
class AnswerSamples : public lockstep::Callback {
 public:
  /// All outlive the run. `count` questions are asked; 0: none.
  AnswerSamples(lockstep::Gpt2& model, const lockstep::Tokenizer& tokenizer,
                const std::vector<Question>& questions, std::int64_t count);

  void on_tracker(lockstep::Tracker* tracker) override { tracker_ = tracker; }
  void on_evaluation(std::int64_t step, const std::map<std::string, double>& metrics) override;
  void on_end(const lockstep::TrainResult& result) override;

 private:
  void answer(std::int64_t step);

  lockstep::Gpt2& model_;
  const lockstep::Tokenizer& tokenizer_;
  std::vector<Question> questions_;
  lockstep::Tracker* tracker_ = nullptr;
  std::int64_t answered_ = -1;  // the step of the last answers
};

}  // namespace train_llm
