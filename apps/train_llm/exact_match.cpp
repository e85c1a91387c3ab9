#include "exact_match.h"

#include <algorithm>
#include <cmath>

#include "lockstep/error.h"
#include "lockstep/generate.h"

namespace train_llm {
namespace {

using lockstep::concat;

constexpr std::size_t kAtATime = 64;

std::string percent(double share) {
  return concat(std::lround(100 * share), " %");
}

nlohmann::json as_json(const ExactMatch::Count& count) {
  return {{"right", count.right}, {"asked", count.asked}};
}

std::string one_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace

std::string ExactMatch::summary() const {
  std::string tasks;
  for (const auto& [task, count] : by_task) {
    tasks += concat(tasks.empty() ? "" : ", ", task, " ", percent(count.share()));
  }
  return concat(percent(all.share()), " of ", all.asked, " (", tasks, ")");
}

nlohmann::json ExactMatch::to_json() const {
  nlohmann::json tasks;
  for (const auto& [task, count] : by_task) tasks[task] = as_json(count);
  return {{"all", as_json(all)}, {"tasks", tasks}};
}

ExactMatch ask(lockstep::Gpt2& model, const lockstep::Tokenizer& tokenizer,
               const std::vector<Question>& questions) {
  ExactMatch result;
  for (std::size_t first = 0; first < questions.size(); first += kAtATime) {
    const std::size_t last = std::min(first + kAtATime, questions.size());
    std::vector<std::vector<std::int32_t>> prompts;
    std::size_t longest = 0;
    for (std::size_t i = first; i < last; ++i) {
      prompts.push_back(tokenizer.encode(questions[i].prompt));
      longest = std::max(longest, tokenizer.encode(questions[i].answer).size());
    }
    const auto generated = lockstep::generate(
        model, prompts,
        {.max_new_tokens = static_cast<std::int64_t>(longest) + 1,  // and the end of the text
         .temperature = 0,
         .stop_token = tokenizer.end_of_text()});
    for (std::size_t i = first; i < last; ++i) {
      const lockstep::Generated& text = generated[i - first];
      const std::string answer = tokenizer.decode(text.tokens);
      const bool right =
          text.end == lockstep::GenerateEnd::stop_token && answer == questions[i].answer;
      for (ExactMatch::Count* count : {&result.all, &result.by_task[questions[i].task]}) {
        count->right += right;
        count->asked += 1;
      }
      result.answers.push_back(answer);
    }
  }
  return result;
}

std::vector<std::size_t> some_of_each_task(const std::vector<Question>& questions,
                                           std::int64_t count) {
  std::map<std::string, std::int64_t> taken;
  for (const Question& question : questions) taken[question.task] = 0;
  const auto tasks = std::max<std::int64_t>(1, std::ssize(taken));
  const std::int64_t of_each = (count + tasks - 1) / tasks;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < questions.size() && std::ssize(places) < count; ++i) {
    if (taken[questions[i].task]++ < of_each) places.push_back(i);
  }
  return places;
}

std::string samples(const std::vector<Question>& questions, const ExactMatch& result,
                    std::int64_t count) {
  std::string text;
  for (const std::size_t i : some_of_each_task(questions, count)) {
    const bool right = result.answers[i] == questions[i].answer;
    text += concat("  ", one_line(questions[i].prompt), " -> ", one_line(result.answers[i]),
                   right ? "" : concat("   (", questions[i].answer, " would be right)"), "\n");
  }
  return text;
}

}  // namespace train_llm
