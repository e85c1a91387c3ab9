#include "cluster/hosts.h"

#include <algorithm>

#include "core/hostlist.h"
#include "core/parse_integer.h"
#include "launch/ip_address.h"
#include "launch/option_values.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr int kMaxSlots = 4096;

int parse_slots(std::string_view text, const std::string& where) {
  const auto count = parse_integer<int>(text);
  if (!count || *count < 1 || *count > kMaxSlots) {
    throw InvalidArgument(concat(
        where, ": '", text, "' is no number of workers; it must be from 1 ", "to ", kMaxSlots));
  }
  return *count;
}

std::vector<int> parse_gpus(std::string_view text, const std::string& where) {
  std::vector<int> gpus;
  for (const std::string_view part : split(text, ',')) {
    const auto number = parse_integer<int>(trim(part));
    if (!number || *number < 0 || *number > kMaxSlots) {
      throw InvalidArgument(
          concat(where, ": '", text, "' is no list of GPUs; write numbers with commas between"));
    }
    if (std::ranges::find(gpus, *number) != gpus.end()) {
      throw InvalidArgument(concat(where, ": GPU ", *number, " is named twice"));
    }
    gpus.push_back(*number);
  }
  return gpus;
}

// At commas outside brackets.
std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> items;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    const char letter = at < text.size() ? text[at] : ',';
    if (letter == '[') ++depth;
    if (letter == ']') --depth;
    if (letter == ',' && (depth <= 0 || at == text.size())) {
      items.push_back(trim(text.substr(begin, at - begin)));
      begin = at + 1;
    }
  }
  return items;
}

// "n[1-3]", a name or a numeric address; IPv6 needs brackets, as in a URL, where a count may
// follow.
std::vector<std::string> names_of(std::string_view text, const std::string& where) {
  if (text.empty()) {
    throw InvalidArgument(concat(where, ": a name is missing; is there a comma too many?"));
  }
  if (IpAddress::parse(std::string(text))) return {std::string(text)};
  if (text.starts_with('[') && text.ends_with(']')) {
    const std::string inside(text.substr(1, text.size() - 2));
    if (IpAddress::parse(inside)) return {inside};
  }
  try {
    return expand_hostlist(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(concat(where, ": ", error.what()));
  }
}

void add(std::vector<Host>& hosts, Host host, const std::string& where) {
  const auto known = std::ranges::find(hosts, host.name, &Host::name);
  if (known == hosts.end()) return hosts.push_back(std::move(host));
  throw InvalidArgument(concat(where, ": '", host.name, "' is named twice"));
}

struct Item {
  std::string_view names;
  std::optional<std::string_view> after_colon;
};

Item split_colon(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const std::size_t bracket = text.rfind(']');
  const bool inside = bracket != std::string_view::npos && colon < bracket;
  if (colon == std::string_view::npos || inside || IpAddress::parse(std::string(text))) {
    return {text, std::nullopt};
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

// One line of a hostfile.
std::vector<Host> hosts_of_line(std::string_view line, const std::string& where) {
  std::vector<std::string_view> words;
  for (const std::string_view word : split(line, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  const Item item = split_colon(words.front());
  Host host;
  if (item.after_colon) host.slots = parse_slots(*item.after_colon, where);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    const std::string_view key = words[i].substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : words[i].substr(equals + 1);
    if (key == "slots") {
      host.slots = parse_slots(value, where);
    } else if (key == "gpus") {
      host.gpus = parse_gpus(value, where);
    } else if (key == "max_slots" || key == "max-slots") {
      parse_slots(value, where);  // of Open MPI: never are more workers started than slots
    } else {
      throw InvalidArgument(
          concat(where, ": '", words[i], "' is not understood; write 'name slots=4 gpus=0,1,2,3'"));
    }
  }
  if (!host.slots && !host.gpus.empty()) host.slots = static_cast<int>(host.gpus.size());
  std::vector<Host> hosts;
  for (std::string& name : names_of(item.names, where)) {
    hosts.push_back(host);
    hosts.back().name = std::move(name);
  }
  return hosts;
}

std::string without_comment(std::string_view line) {
  std::string text(line.substr(0, line.find('#')));
  std::ranges::replace(text, '\t', ' ');
  std::ranges::replace(text, '\r', ' ');
  return std::string(trim(text));
}

// A part of --include or --exclude.
struct Choice {
  std::string name;
  std::vector<int> gpus;  // empty: the whole machine
};

std::vector<Choice> choices_of(const std::string& text, const std::string& option) {
  std::vector<Choice> choices;
  for (const std::string_view part : split(text, '@')) {
    const Item item = split_colon(trim(part));
    for (std::string& name : names_of(item.names, option)) {
      choices.push_back({std::move(name), {}});
      if (item.after_colon) choices.back().gpus = parse_gpus(*item.after_colon, option);
    }
  }
  return choices;
}

Host& find_host(std::vector<Host>& hosts, const std::string& name, const std::string& option) {
  const auto found = std::ranges::find(hosts, name, &Host::name);
  if (found == hosts.end()) {
    throw InvalidArgument(concat(option, " names '", name,
                                 "', which is not among the machines: ", list_hosts(hosts)));
  }
  return *found;
}

void use_gpus(Host& host, const std::vector<int>& gpus, const std::string& option) {
  for (const int gpu : gpus) {
    const bool listed = std::ranges::find(host.gpus, gpu) != host.gpus.end();
    if (host.gpus.empty() ? host.slots && gpu >= *host.slots : !listed) {
      throw InvalidArgument(concat(option, " names GPU ", gpu, " of ", host.name,
                                   ", which the list of machines does not give it"));
    }
  }
  host.gpus = gpus;
  host.slots = static_cast<int>(gpus.size());
}

}  // namespace

std::vector<Host> hosts_of(std::string_view list, const std::string& option) {
  std::vector<Host> hosts;
  for (const std::string_view text : split_list(list)) {
    const Item item = split_colon(text);
    std::optional<int> slots;
    if (item.after_colon) slots = parse_slots(*item.after_colon, option);
    for (std::string& name : names_of(item.names, option)) {
      add(hosts, {.name = std::move(name), .slots = slots}, option);
    }
  }
  return hosts;
}

std::vector<Host> hosts_of_file(std::string_view text, const std::string& path) {
  std::vector<Host> hosts;
  int number = 0;
  for (const std::string_view raw : split(text, '\n')) {
    ++number;
    const std::string line = without_comment(raw);
    if (line.empty()) continue;
    const std::string where = concat(path, ":", number);
    for (Host& host : hosts_of_line(line, where)) {
      const auto known = std::ranges::find(hosts, host.name, &Host::name);
      if (known == hosts.end()) {
        hosts.push_back(std::move(host));
      } else if (known->gpus.empty() && host.gpus.empty()) {
        known->slots = known->slots.value_or(1) + host.slots.value_or(1);  // as for Open MPI
      } else {
        throw InvalidArgument(concat(where, ": '", host.name, "' is named twice, with GPUs"));
      }
    }
  }
  if (hosts.empty()) throw InvalidArgument(concat(path, " names no machine"));
  return hosts;
}

std::vector<Host> hosts_of_nodefile(std::string_view text, const std::string& path) {
  std::vector<Host> hosts;
  int index = 0;
  for (const std::string_view raw : split(text, '\n')) {
    const std::string name(trim(without_comment(raw)));
    if (name.empty()) continue;
    const auto known = std::ranges::find(hosts, name, &Host::name);
    if (known == hosts.end()) {
      hosts.push_back({.name = name, .slots = 1, .gpus = {}, .task_index = index});
    } else {
      ++*known->slots;
    }
    ++index;
  }
  if (hosts.empty()) throw InvalidArgument(concat(path, " names no machine"));
  return hosts;
}

std::vector<Host> chosen_hosts(std::vector<Host> hosts, const std::optional<std::string>& include,
                               const std::optional<std::string>& exclude) {
  if (include) {
    std::vector<std::string> kept;
    for (const Choice& choice : choices_of(*include, "--include")) {
      Host& host = find_host(hosts, choice.name, "--include");
      if (!choice.gpus.empty()) use_gpus(host, choice.gpus, "--include");
      kept.push_back(choice.name);
    }
    std::erase_if(
        hosts, [&](const Host& host) { return std::ranges::find(kept, host.name) == kept.end(); });
  }
  if (exclude) {
    for (const Choice& choice : choices_of(*exclude, "--exclude")) {
      Host& host = find_host(hosts, choice.name, "--exclude");
      if (!choice.gpus.empty() && host.gpus.empty() && !host.slots) {
        throw InvalidArgument(concat("--exclude names GPUs of ", host.name,
                                     ", but how many it has is not known: give it slots"));
      }
      std::vector<int> left = host.gpus;
      if (left.empty()) {
        for (int gpu = 0; gpu < host.slots.value_or(0); ++gpu) left.push_back(gpu);
      }
      std::erase_if(left, [&](int gpu) {
        return choice.gpus.empty() || std::ranges::find(choice.gpus, gpu) != choice.gpus.end();
      });
      if (left.empty()) {
        std::erase_if(hosts, [&](const Host& each) { return each.name == choice.name; });
      } else {
        use_gpus(host, left, "--exclude");
      }
    }
  }
  if (hosts.empty()) {
    throw InvalidArgument(concat(include ? "--include" : "--exclude", " leaves no machine"));
  }
  return hosts;
}

std::string list_hosts(const std::vector<Host>& hosts) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const bool last = i + 1 == hosts.size();
    if (i >= kShown && !last) continue;
    if (i > kShown) text += ", ...";
    text += concat(i == 0 ? "" : last && hosts.size() <= kShown ? " and " : ", ", hosts[i].name);
  }
  return text;
}

}  // namespace lockstep
