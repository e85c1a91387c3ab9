#include "options.h"

#include <charconv>
#include <string_view>

#include "lockstep/error.h"
#include "lockstep/tracker.h"

namespace {

using lockstep::concat;
using lockstep::InvalidArgument;

constexpr int kMostEpochs = 1'000'000;

int parse_number(std::string_view name, std::string_view text, int highest) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > highest) {
    throw InvalidArgument(
        concat(name, " is \"", text, "\"; it must be a whole number from 1 to ", highest));
  }
  return value;
}

void check_sinks(const std::string& list) {
  try {
    lockstep::TrackingOptions unused;
    lockstep::choose_sinks(unused, list);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat("--track is \"", list, "\": ", error.what()));
  }
}

void set_positional(Options& options, int position, std::string_view word) {
  if (position == 0) {
    options.total_epochs = parse_number("TOTAL_EPOCHS", word, kMostEpochs);
  } else if (position == 1) {
    options.save_every = parse_number("SAVE_EVERY", word, kMostEpochs);
  } else {
    throw InvalidArgument(concat("\"", word, "\" is one argument too many (see --help)"));
  }
}

}  // namespace

const char* const kHelp =
    R"(usage: toy_trainer [TOTAL_EPOCHS] [SAVE_EVERY] [--batch_size N] [--ranks N]
                   [--snapshot_path FILE] [--checkpoint_path FILE] [--track LIST]

Trains the model of PyTorch's DDP tutorial, Linear(20, 1), on 2,048 samples of random data. Saves a
snapshot and, started again, goes on from it: the end is the same, bit for bit.

  TOTAL_EPOCHS            passes over the data, those of earlier runs included (10)
  SAVE_EVERY              epochs from one snapshot to the next (5); there is always one at the end
  --batch_size N          samples per rank and step (32)
  --ranks N               processes to start (1); under a launcher such as torchrun the ranks are
                          there already, and the option can be left out
  --snapshot_path FILE    the snapshot (snapshot.pt): a dictionary with MODEL_STATE and EPOCHS_RUN,
                          which Python's torch.load reads and the tutorial's script goes on from
  --checkpoint_path FILE  beside each snapshot write the model's state_dict alone to FILE
                          (checkpoint.pt in the tutorial's earlier chapters)
  --track LIST            keep the curves, separated by commas: jsonl (always), tensorboard, wandb; in the
                          run directory of lockstep run, else in the folder toy_run
  -h, --help              this text

SIGTERM saves the last whole epoch and ends the program with code 75.
)";

Options parse(int argc, char** argv) {
  Options options;
  int positionals = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const std::string_view flag = word.substr(0, word.find('='));
    // Both "--ranks 2" and "--ranks=2".
    const auto value = [&](const char* what) -> std::string_view {
      if (flag.size() < word.size()) return word.substr(flag.size() + 1);
      if (i + 1 == argc) throw InvalidArgument(concat(flag, " needs ", what));
      return argv[++i];
    };
    const auto path = [&] {
      const std::string_view name = value("a file name");
      if (name.empty()) throw InvalidArgument(concat(flag, " is empty; it must be a file name"));
      return std::string(name);
    };
    if (word == "-h" || word == "--help") {
      options.help = true;
    } else if (flag == "--batch_size") {
      options.batch_size = parse_number(flag, value("a number"), 2048);
    } else if (flag == "--ranks") {
      options.ranks = parse_number(flag, value("a number"), 1024);
    } else if (flag == "--snapshot_path") {
      options.snapshot_path = path();
    } else if (flag == "--checkpoint_path") {
      options.checkpoint_path = path();
    } else if (flag == "--track") {
      options.track = value("a list");
      check_sinks(options.track);
    } else if (word.starts_with("-")) {
      throw InvalidArgument(concat("there is no option ", flag, " (see --help)"));
    } else {
      set_positional(options, positionals++, word);
    }
  }
  return options;
}
