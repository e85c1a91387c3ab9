// Trains a GPT-2 on all ranks of a job, writes text with it, and exports it.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "command_line.h"
#include "lockstep/cpu_memory.h"
#include "lockstep/environment.h"
#include "lockstep/error.h"
#include "lockstep/record.h"
#include "lockstep/spawn.h"
#include "saved_model_commands.h"
#include "train.h"

namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

int train_on_ranks(const train_llm::Invocation& invocation) {
  const int ranks = static_cast<int>(invocation.options.ranks);
  const bool spawned = std::getenv("LOCKSTEP_SPAWN") != nullptr;
  const auto launched = lockstep::detect_environment(lockstep::Environment::of_process());
  if (launched && !spawned && ranks != 1 && ranks != launched->world_size) {
    throw InvalidArgument(concat("--ranks is ", ranks, ", but the launcher (",
                                 lockstep::to_string(launched->launcher), ") started ",
                                 launched->world_size, "; leave it out"));
  }
  if (ranks == 1 || (launched && !spawned)) return train_llm::train(invocation);
  try {
    lockstep::spawn(
        [&](int) {
          const int code = train_llm::train(invocation);
          if (code != 0) std::exit(code);
        },
        ranks);
  } catch (const lockstep::SpawnFailed& failed) {
    if (failed.exit_code() == 0) throw;  // a signal: the rank has said nothing itself
    return failed.exit_code();
  }
  return 0;
}

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
      return train_on_ranks(invocation);
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
