// What --help prints.
#include <cstddef>
#include <sstream>

#include "command_line.h"
#include "lockstep/error.h"

namespace train_llm {
namespace {

using lockstep::concat;

constexpr std::size_t kIndent = 28, kWidth = 100;

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

// Appends words, breaking lines before kWidth.
void wrap(std::string& text, std::string_view words, std::size_t column) {
  std::istringstream stream{std::string(words)};
  for (std::string word; stream >> word;) {
    if (column + 1 + word.size() > kWidth) {
      text += concat("\n", std::string(kIndent, ' '), word);
      column = kIndent + word.size();
    } else {
      const bool first = text.ends_with("  ");
      text += (first ? "" : " ") + word;
      column += word.size() + (first ? 0 : 1);
    }
  }
  text += "\n";
}

std::string default_of(const OptionSpec& option) {
  if (option.is_switch()) return "";
  if (!option.shown_default.empty()) return concat("default: ", option.shown_default);
  const nlohmann::json value = get_option(Options{}, option);
  if (value.is_string() && value.get<std::string>().empty()) return "";
  return concat("default ", value.is_string() ? value.get<std::string>() : value.dump());
}

void describe(std::string& text, const OptionSpec& option) {
  std::string line = concat("  ", option.letter != 0 ? concat("-", option.letter, ", ") : "", "--",
                            option.name, option.value.empty() ? "" : " ", option.value);
  if (line.size() + 2 > kIndent) {
    text += line + "\n";
    line.clear();
  }
  line.resize(kIndent, ' ');
  text += line;
  const std::string value = default_of(option);
  wrap(text, concat(option.help, value.empty() ? "" : concat(" (", value, ")")), kIndent);
}

}  // namespace

std::string help_text(Command command) {
  std::string text(command == Command::train      ? kTrainIntroduction
                   : command == Command::generate ? kGenerateIntroduction
                                                  : kExportIntroduction);
  std::string_view heading;
  for (const OptionSpec& option : all_options()) {
    if (!option.heading.empty()) heading = option.heading;
    if (!option.is_known_to(command)) continue;
    if (!heading.empty()) text += concat("\n", heading, ":\n");
    heading = {};
    describe(text, option);
  }
  text += concat("\n  --config FILE             ");
  text += "options as JSON, {\"lr\": 1e-4, ...}; the command line counts more\n";
  text += "  -h, --help                this text\n";
  text += "\nNames may be written with '-' or '_', and cut short.\n";
  if (command == Command::train) {
    text += "SIGTERM saves and ends the program with code 75; started again, it goes on.\n";
  }
  return text;
}

}  // namespace train_llm
