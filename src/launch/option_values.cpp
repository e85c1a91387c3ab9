#include "launch/option_values.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <csignal>
#include <limits>

#include "core/parse_integer.h"
#include "core/signal_names.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void reject(const OptionValue& value, std::string_view rule) {
  throw InvalidArgument(concat(value.source, " is '", value.text, "'; ", rule));
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find(separator, start);
    pieces.push_back(text.substr(start, end - start));
    if (end == std::string_view::npos) {
      return pieces;
    }
    start = end + 1;
  }
}

std::optional<int> parse_python_int(std::string_view text) {
  text = trim(text);
  std::string plain;
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) {
    if (text.front() == '-') {
      plain += '-';
    }
    text.remove_prefix(1);
  }
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between_digits =
        i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (is_digit(text[i])) {
      plain += text[i];
    } else if (text[i] != '_' || !between_digits) {
      return std::nullopt;
    }
  }
  return parse_integer<int>(plain);
}

int parse_int_at_least(const OptionValue& value, int minimum) {
  const auto number = parse_python_int(value.text);
  if (!number || *number < minimum) {
    reject(value, concat("it must be an integer of at least ", minimum));
  }
  return *number;
}

int parse_port(const OptionValue& value) {
  const auto port = parse_python_int(value.text);
  if (!port || *port < 0 || *port > 65535) {
    reject(value, "it must be a port, an integer from 0 to 65535 (0: any free one)");
  }
  return *port;
}

std::chrono::duration<double> parse_positive_seconds(const OptionValue& value) {
  const std::string_view text = trim(value.text);
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // A limit, so that what is computed from it cannot overflow: a hundred years.
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(seconds) ||
      seconds <= 0 || seconds > 3.2e9) {
    reject(value, "it must be a number of seconds above 0");
  }
  return std::chrono::duration<double>(seconds);
}

bool parse_flag_variable(const OptionValue& value) {
  const auto number = parse_python_int(value.text);
  if (!number) {
    reject(value, "it must be an integer: 0 for off, 1 for on");
  }
  return *number != 0;
}

std::pair<int, int> parse_nodes(const OptionValue& value) {
  const auto pieces = split(value.text, ':');
  const auto low = parse_python_int(pieces.front());
  const auto high = parse_python_int(pieces.back());
  if (pieces.size() > 2 || !low || !high || *low < 1 || *high < *low) {
    reject(value, "it must be N or MIN:MAX, with 0 < MIN <= MAX");
  }
  return {*low, *high};
}

std::string parse_processes(const OptionValue& value) {
  if (value.text == "cpu" || value.text == "gpu" || value.text == "auto") {
    return value.text;
  }
  if (value.text == "xpu") {
    reject(value, "counting xpu devices is not supported; give their number");
  }
  const auto number = parse_python_int(value.text);
  if (!number || *number < 1) {
    reject(value, "it must be a number of at least 1, or cpu, gpu or auto");
  }
  return std::to_string(*number);
}

StreamMap parse_streams(const OptionValue& value) {
  const auto streams = [](std::string_view text) -> std::optional<Streams> {
    if (text.size() != 1 || text[0] < '0' || text[0] > '3') {
      return std::nullopt;
    }
    return static_cast<Streams>(text[0] - '0');
  };
  StreamMap map;
  if (const auto all = streams(value.text)) {
    map.all = *all;
    return map;
  }
  for (const std::string_view entry : split(value.text, ',')) {
    const auto parts = split(entry, ':');
    const auto rank = parse_integer<int>(parts.front());
    const auto which = streams(parts.back());
    if (parts.size() != 2 || !rank || *rank < 0 || !which) {
      reject(value,
             "it must be 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or a list of "
             "LOCAL_RANK:VALUE such as 0:3,1:2");
    }
    map.by_local_rank[*rank] = *which;
  }
  return map;
}

std::optional<std::set<int>> parse_local_ranks(const OptionValue& value) {
  if (value.text.empty()) {
    return std::nullopt;
  }
  std::set<int> ranks;
  for (const std::string_view piece : split(value.text, ',')) {
    const auto rank = parse_python_int(piece);
    if (!rank || *rank < 0) {
      reject(value, "it must be a list of local ranks with commas between, such as 0,1,2");
    }
    ranks.insert(*rank);
  }
  return ranks;
}

std::vector<std::string> split_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += ',';
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

std::vector<int> parse_signals(const OptionValue& value) {
  std::vector<int> numbers;
  if (trim(value.text).empty()) {
    return numbers;
  }
  for (const std::string_view piece : split(value.text, ',')) {
    const std::string_view name = trim(piece);
    const auto number = signal_number(name);
    if (!number) {
      reject(value, concat("'", name, "' is no signal; write names such as SIGTERM,SIGUSR1"));
    }
    if (*number == SIGKILL || *number == SIGSTOP) {
      reject(value, concat("no program can handle ", name, "; leave it out"));
    }
    if (std::ranges::find(numbers, *number) == numbers.end()) {
      numbers.push_back(*number);
    }
  }
  return numbers;
}

std::uintmax_t parse_size(const OptionValue& value) {
  constexpr std::string_view kUnits = "KMGT";
  constexpr std::string_view kRule =
      "it must be a number of bytes above 0, with K, M, G or T after it for powers of 1024";
  std::string_view text = trim(value.text);
  int shift = 0;
  if (!text.empty()) {
    const auto unit = kUnits.find(static_cast<char>(std::toupper(text.back())));
    if (unit != std::string_view::npos) {
      shift = 10 * static_cast<int>(unit + 1);
      text.remove_suffix(1);
    }
  }
  const auto number = parse_integer<std::uintmax_t>(text);
  if (!number || *number == 0 ||
      *number > (std::numeric_limits<std::uintmax_t>::max() >> 1 >> shift)) {
    reject(value, kRule);
  }
  return *number << shift;
}

}  // namespace lockstep
