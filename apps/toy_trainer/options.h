#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// What toy_trainer is told on its command line.
struct Options {
  std::int64_t total_epochs = 10;
  std::int64_t save_every = 5;
  std::int64_t batch_size = 32;
  std::optional<int> ranks = std::nullopt;
  std::string snapshot_path = "snapshot.pt";
  std::string checkpoint_path = {};  // empty: none is written
  std::string track = {};            // empty: as the launcher's run directory has it
  bool help = false;
};

extern const char* const kHelp;

/// Throws InvalidArgument with one line that says what is wrong.
Options parse(int argc, char** argv);
