// Trains a GPT-2 on all ranks of a job, writes text with it, and exports it.
#include <iostream>
#include <string>
#include <vector>

#include "command_line.h"
#include "lockstep/cpu_memory.h"
#include "lockstep/record.h"
#include "plan.h"
#include "program_ranks/program_ranks.h"
#include "saved_model_commands.h"
#include "train.h"

namespace {

int run(int argc, char** argv) {
  lockstep::reuse_cpu_memory();  // every step allocates what the one before has freed
  const train_llm::Invocation invocation =
      train_llm::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
  if (invocation.help) {
    std::cout << train_llm::help_text(invocation.command);
    return 0;
  }
  switch (invocation.command) {
    case train_llm::Command::train:
      if (invocation.options.plan) {
        std::cout << train_llm::plan_text(invocation);
        return 0;
      }
      return program_ranks::run_on_ranks(invocation.options.ranks,
                                         [&] { return train_llm::train(invocation); });
    case train_llm::Command::generate:
      return train_llm::generate_text(invocation.options);
    case train_llm::Command::export_model:
      return train_llm::export_model(invocation.options, invocation.target);
  }
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::record(argc, argv, run);
}
