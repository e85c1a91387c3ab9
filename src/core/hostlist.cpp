#include "core/hostlist.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxTextLength = std::size_t{1} << 20;
constexpr std::size_t kMaxHosts = 65536;     // Slurm's MAX_SLURM_NODES
constexpr std::size_t kMaxHostLength = 253;  // DNS

[[noreturn]] void refuse(std::string_view text, std::string_view rule) {
  // Garbage can be long; its beginning is enough to find where it came from.
  const std::string_view shown = text.substr(0, 100);
  throw InvalidArgument(concat("the host list '", shown, shown.size() < text.size() ? "..." : "",
                               "' cannot be read: ", rule));
}

bool may_be_in_host(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') || letter == '-' || letter == '_' || letter == '.';
}

// Cuts `text` at the commas outside brackets.
std::vector<std::string_view> split_entries(std::string_view text) {
  std::vector<std::string_view> entries;
  std::size_t begin = 0;
  bool inside = false;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    const char letter = at < text.size() ? text[at] : ',';
    if (letter == '[' || letter == ']') {
      if (inside == (letter == '[')) {
        refuse(text, "its brackets do not match");
      }
      inside = letter == '[';
    } else if (letter == ',' && (!inside || at == text.size())) {
      entries.push_back(text.substr(begin, at - begin));
      begin = at + 1;
    }
  }
  if (inside) {
    refuse(text, "its brackets do not match");
  }
  return entries;
}

// "1-3,07" gives 1, 2, 3, 07. Zeros in front of a range's first number fill up all its numbers.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view text) {
  std::vector<std::string> numbers;
  for (std::size_t begin = 0; begin <= ranges.size();) {
    const std::string_view range = ranges.substr(begin, ranges.find(',', begin) - begin);
    begin += range.size() + 1;

    const std::size_t dash = range.find('-');
    const std::string_view low_text = range.substr(0, dash);
    const std::string_view high_text =
        dash == std::string_view::npos ? low_text : range.substr(dash + 1);
    const auto low = parse_integer<std::uint64_t>(low_text);
    const auto high = parse_integer<std::uint64_t>(high_text);
    if (!low || !high || *high < *low || low_text.size() > kMaxHostLength) {
      refuse(text, concat("'", range, "' is not a range of numbers"));
    }
    if (*high - *low >= kMaxHosts - numbers.size()) {
      refuse(text, concat("it names more than ", kMaxHosts, " hosts"));
    }
    for (std::uint64_t step = 0; step <= *high - *low; ++step) {
      std::string number = std::to_string(*low + step);
      if (number.size() < low_text.size()) {
        number.insert(0, low_text.size() - number.size(), '0');
      }
      numbers.push_back(std::move(number));
    }
  }
  return numbers;
}

// One entry, such as "a[1-2]b[3-4]": every bracket multiplies the names so far.
std::vector<std::string> expand_entry(std::string_view entry, std::string_view text) {
  std::vector<std::string> names = {""};
  while (!entry.empty()) {
    const std::size_t open = entry.find('[');
    const std::string_view plain = entry.substr(0, open);
    std::vector<std::string> numbers = {""};
    entry.remove_prefix(plain.size());
    if (!entry.empty()) {
      const std::size_t close = entry.find(']');
      numbers = expand_ranges(entry.substr(1, close - 1), text);
      entry.remove_prefix(close + 1);
    }
    if (names.size() * numbers.size() > kMaxHosts) {
      refuse(text, concat("it names more than ", kMaxHosts, " hosts"));
    }
    std::vector<std::string> longer;
    longer.reserve(names.size() * numbers.size());
    for (const std::string& name : names) {
      for (const std::string& number : numbers) {
        longer.push_back(std::string(name).append(plain).append(number));
        if (longer.back().size() > kMaxHostLength) {
          refuse(text, concat("a host's name is longer than ", kMaxHostLength, " letters"));
        }
      }
    }
    names = std::move(longer);
  }
  return names;
}

void check_host(const std::string& host, std::string_view text) {
  if (host.empty()) {
    refuse(text, "it holds an empty name");
  }
  // Hosts end up on ssh's and srun's command lines, where a leading dash would be an option.
  if (host.front() == '-') {
    refuse(text, concat("'", host, "' begins with a dash"));
  }
  for (const char letter : host) {
    if (!may_be_in_host(letter)) {
      refuse(text, concat("'", host, "' is not a host's name"));
    }
  }
}

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view text) {
  if (text.size() > kMaxTextLength) {
    refuse(text, concat("it is longer than ", kMaxTextLength, " letters"));
  }
  std::vector<std::string> hosts;
  for (const std::string_view entry : split_entries(text)) {
    std::vector<std::string> names = expand_entry(entry, text);
    if (hosts.size() + names.size() > kMaxHosts) {
      refuse(text, concat("it names more than ", kMaxHosts, " hosts"));
    }
    for (std::string& name : names) {
      check_host(name, text);
      hosts.push_back(std::move(name));
    }
  }
  return hosts;
}

int tasks_on_node(std::string_view text, int node) {
  std::int64_t nodes_so_far = 0;
  std::optional<int> found;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::string_view entry = text.substr(begin, text.find(',', begin) - begin);
    begin += entry.size() + 1;

    const std::size_t open = entry.find("(x");
    std::optional<int> nodes = 1;
    if (open != std::string_view::npos) {
      const bool closed = entry.back() == ')';
      nodes = closed ? parse_integer<int>(entry.substr(open + 2, entry.size() - open - 3))
                     : std::nullopt;
    }
    const auto tasks = parse_integer<int>(entry.substr(0, open));
    if (!tasks || *tasks < 1 || !nodes || *nodes < 1) {
      throw InvalidArgument(concat("the tasks per node '", text.substr(0, 100),
                                   "' cannot be read: '", entry.substr(0, 100),
                                   "' is not of the form 2 or 2(x3)"));
    }
    nodes_so_far += *nodes;
    if (!found && node < nodes_so_far) {
      found = tasks;
    }
  }
  if (found) {
    return *found;
  }
  throw InvalidArgument(concat("the tasks per node '", text.substr(0, 100),
                               "' have no entry for node ", node, "; they end at ",
                               nodes_so_far - 1));
}

}  // namespace lockstep
