#include "answer_samples.h"

#include "lockstep/tracker.h"

namespace train_llm {

AnswerSamples::AnswerSamples(lockstep::Gpt2& model, const lockstep::Tokenizer& tokenizer,
                             const std::vector<Question>& questions, std::int64_t count)
    : model_(model), tokenizer_(tokenizer) {
  for (const std::size_t place : some_of_each_task(questions, count)) {
    questions_.push_back(questions[place]);
  }
}

void AnswerSamples::on_evaluation(std::int64_t step, const std::map<std::string, double>&) {
  answer(step);
}

void AnswerSamples::on_end(const lockstep::TrainResult& result) {
  if (result.step != answered_) answer(result.step);
}

void AnswerSamples::answer(std::int64_t step) {
  if (tracker_ == nullptr || questions_.empty()) return;
  answered_ = step;
  const ExactMatch result = ask(model_, tokenizer_, questions_);
  tracker_->text(step, "answers",
                 samples(questions_, result, static_cast<std::int64_t>(questions_.size())));
}

}  // namespace train_llm
