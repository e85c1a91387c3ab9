#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/options.h"

namespace lockstep {

/// A value and where it came from, so that an error can name what the user wrote: "--nnodes" or
/// "PET_NNODES".
struct OptionValue {
  std::string source;
  std::string text;
};

/// Throws InvalidArgument: "<source> is '<text>'; <rule>".
[[noreturn]] void reject(const OptionValue& value, std::string_view rule);

/// What Python's int() accepts in base ten: blanks around, a sign, single underscores between
/// digits. std::nullopt for anything else and for what an int cannot hold.
std::optional<int> parse_python_int(std::string_view text);

// Each of the following throws InvalidArgument naming the source, the value and the rule.

int parse_int_at_least(const OptionValue& value, int minimum);
int parse_port(const OptionValue& value);

/// Any finite number above zero, in seconds.
std::chrono::duration<double> parse_positive_seconds(const OptionValue& value);

/// An environment variable for a flag: an integer, 0 for off. torchrun refuses words as well.
bool parse_flag_variable(const OptionValue& value);

/// "N" or "MIN:MAX".
std::pair<int, int> parse_nodes(const OptionValue& value);

/// A positive number in plain digits, or cpu, gpu, auto.
std::string parse_processes(const OptionValue& value);

/// "0" to "3", or "0:1,12:3" by local rank.
StreamMap parse_streams(const OptionValue& value);

/// "0,2"; std::nullopt for an empty text, which means all.
std::optional<std::set<int>> parse_local_ranks(const OptionValue& value);

/// Splits at commas; two commas are one that is meant. Never empty: "" is one empty item, which
/// every line contains, as in torchrun.
std::vector<std::string> split_filters(std::string_view text);

/// Signal names with commas between; empty for an empty text.
std::vector<int> parse_signals(const OptionValue& value);

/// "500", "64K", "100M", "2G", "1T": bytes, with factors of 1024.
std::uintmax_t parse_size(const OptionValue& value);

/// Blanks at both ends taken away.
std::string_view trim(std::string_view text);

/// The pieces between separators; one empty piece for an empty text.
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace lockstep
