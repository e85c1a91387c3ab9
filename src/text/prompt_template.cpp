#include <string_view>

#include "lockstep/text_records.h"

namespace lockstep {
namespace {

// Puts the fields into a template, in one pass: a field that has a placeholder in it stays as it
// is.
std::string fill(std::string_view pattern, const TextRecord& record) {
  constexpr std::string_view kInstruction = "{instruction}", kInput = "{input}";
  std::string text;
  while (!pattern.empty()) {
    if (pattern.starts_with(kInstruction)) {
      text += record.instruction;
      pattern.remove_prefix(kInstruction.size());
    } else if (pattern.starts_with(kInput)) {
      text += record.input;
      pattern.remove_prefix(kInput.size());
    } else {
      text.push_back(pattern.front());
      pattern.remove_prefix(1);
    }
  }
  return text;
}

}  // namespace

PromptTemplate PromptTemplate::alpaca() {
  return {.with_input =
              "Below is an instruction that describes a task, paired with an input that provides "
              "further context. Write a response that appropriately completes the request.\n\n"
              "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
          .without_input =
              "Below is an instruction that describes a task. Write a response that appropriately "
              "completes the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"};
}

PromptTemplate PromptTemplate::brief() {
  return {.with_input = "{instruction} {input}\n", .without_input = "{instruction}\n"};
}

std::string PromptTemplate::prompt_of(const TextRecord& record) const {
  if (record.instruction.empty() && record.output.empty()) return {};
  return fill(record.input.empty() ? without_input : with_input, record);
}

}  // namespace lockstep
