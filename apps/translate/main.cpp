// Trains an encoder-decoder Transformer on all ranks of a job, and translates with it.
#include <iostream>
#include <string>
#include <vector>

#include "command_line.h"
#include "infer.h"
#include "lockstep/cpu_memory.h"
#include "lockstep/record.h"
#include "program_ranks/program_ranks.h"
#include "train.h"

namespace {

int run(int argc, char** argv) {
  lockstep::reuse_cpu_memory();  // every step allocates what the one before has freed
  const translate::Invocation invocation =
      translate::parse_command_line(std::vector<std::string>(argv + 1, argv + argc));
  if (invocation.help) {
    std::cout << translate::help_text(invocation.command);
    return 0;
  }
  if (invocation.command == translate::Command::infer) return translate::infer(invocation);
  return program_ranks::run_on_ranks(invocation.options.ranks,
                                     [&] { return translate::train(invocation.options); });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::record(argc, argv, run);
}
