#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/text_records.h"

namespace lockstep {

struct EmbeddedInstructionsOptions {
  // Of copy, reverse, sort, add, next, plural; empty: all of them, in equal shares.
  std::vector<std::string> tasks;
  std::int64_t train_records = 20000;
  std::int64_t held_out_records = 300;
  std::uint64_t seed = 0;
  int letters = 10;       // that words of copy, reverse and sort are made of: a, b, c, ...
  int shortest_word = 2;  // characters of these words
  int longest_word = 5;
  int largest_number = 20;  // of add: both summands
  int largest_start = 20;   // of next: where a series starts
  int largest_difference = 5;
};

struct EmbeddedInstructions {
  std::vector<TextRecord> train;
  std::vector<TextRecord> held_out;  // no question of these is in `train`
};

/// Short exercises with answers, made by rules: a data set for trying things out that needs no
/// download. Depends on the options alone, on every machine. One in eight of all questions that a
/// task can ask is held out. The instruction of a record is its task's name.
/// Throws InvalidArgument for options that leave nothing to ask.
EmbeddedInstructions embedded_instructions(const EmbeddedInstructionsOptions& options = {});

/// The names of all tasks.
const std::vector<std::string>& embedded_tasks();

}  // namespace lockstep
