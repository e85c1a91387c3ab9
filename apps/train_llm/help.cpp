// What --help prints.
#include "command_line.h"
#include "program_options/option_words.h"

namespace train_llm {
namespace {

constexpr std::string_view kTrainIntroduction =
    R"(usage: train_llm [OPTIONS]
       train_llm generate --prompt TEXT [OPTIONS]
       train_llm export DIR [--snapshot RUN]

Trains a GPT-2 on all ranks of a job: fine-tunes one from a directory, or begins from scratch. Without
--dataset-name, --model-name and --model a small model learns the instructions inside the program. Started
again with the same options it goes on where it stopped, and ends with the same bits.

  lockstep run --standalone --nproc-per-node 2 train_llm \
    --experiment-name gpt2-alpaca --dataset-name tatsu-lab/alpaca --model-name openai-community/gpt2
)";

constexpr std::string_view kGenerateIntroduction =
    R"(usage: train_llm generate --prompt TEXT [OPTIONS]
       train_llm generate --instruction TEXT [--input TEXT] [OPTIONS]

Writes on from a text with the model of a run.
)";

constexpr std::string_view kExportIntroduction =
    R"(usage: train_llm export DIR [--snapshot RUN]

Writes the model and the tokenizer of a run as a directory that Hugging Face's transformers load.
)";

}  // namespace

std::string help_text(Command command) {
  std::string text(command == Command::train      ? kTrainIntroduction
                   : command == Command::generate ? kGenerateIntroduction
                                                  : kExportIntroduction);
  const Options defaults;
  text +=
      program_options::describe_options(all_options(), static_cast<unsigned>(command), &defaults);
  if (command == Command::train) {
    text += "SIGTERM saves and ends the program with code 75; started again, it goes on.\n";
  }
  return text;
}

}  // namespace train_llm
