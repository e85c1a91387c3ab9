#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// "--port=PORT", "-h, --help", or a command of a command, "list DIRECTORY"; and what it does.
struct CommandWord {
  std::string_view term;
  std::string_view help;
};

/// What one command of `lockstep` has to say about itself. Its help, the manual page and the
/// completions are made of this alone.
struct CommandManual {
  std::string_view name;       // "board"
  std::string_view arguments;  // "[OPTIONS] DIR"
  std::string_view summary;    // one paragraph
  std::span<const CommandWord> words;
  std::string_view remarks = {};  // another paragraph, behind the words
};

/// What --help prints, in lines of at most 96 columns.
std::string help_of(const CommandManual& manual);

/// "list --part= --help": names only, with blanks between and a '=' behind those with a value.
std::string completion_words(const CommandManual& manual);

}  // namespace lockstep
