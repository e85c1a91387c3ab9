#include <algorithm>
#include <map>
#include <tuple>

#include "doctor/judge_nodes.h"
#include "doctor/pair_table.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr double kSlowFactor = 4;         // below the median by so much
constexpr double kLatencyFactor = 10;     // above it
constexpr double kLatencyMatters = 1000;  // microseconds

class Pairs {
 public:
  Pairs(const Examination& examination, Findings& findings)
      : examination_(examination), findings_(findings) {}

  void judge() {
    judge_reach();
    judge_stalls();
    judge_mtu();
    judge_speed();
    judge_latency();
    say_what_is_well();
  }

 private:
  const std::string& name(int node) const {
    return examination_.nodes[static_cast<std::size_t>(node)].hello.host;
  }

  FindingList about(int node) const { return {name(node), findings_}; }

  std::string names(const std::vector<int>& nodes) const {
    std::string text;
    for (std::size_t at = 0; at < std::min<std::size_t>(nodes.size(), 4); ++at) {
      text += concat(text.empty() ? "" : ", ", name(nodes[at]));
    }
    return nodes.size() > 4 ? concat(text, " and ", nodes.size() - 4, " more") : text;
  }

  static std::string cure_for(const std::string& problem) {
    if (problem.find("route") != std::string::npos ||
        problem.find("unreachable") != std::string::npos) {
      return "there is no way between these networks: correct routes (ip route), or choose a "
             "network "
             "that all nodes share (--local-addr)";
    }
    if (problem.find("another node") != std::string::npos) {
      return "two machines have the same address: give each its own";
    }
    if (problem.find("secret") != std::string::npos) {
      return "give the same secret to all nodes";
    }
    return "a firewall keeps them apart: let nodes reach each other at all ports (Gloo and NCCL "
           "take "
           "any), such as ufw allow from NETWORK, or a security group that admits itself";
  }

  // The same problem from several sides is one finding.
  void judge_reach() {
    using Key = std::tuple<int, std::string, std::string, bool>;
    std::map<Key, std::vector<int>> problems;
    for (const PairResult& pair : examination_.pairs) {
      if (pair.reached() || (!pair.main && !pair.on_common_network)) continue;
      problems[{pair.to, pair.address, pair.problem, pair.main}].push_back(pair.from);
    }
    for (const auto& [key, from] : problems) {
      const auto& [to, address, problem, main] = key;
      const std::string what =
          concat("cannot be reached from ", names(from), " at ", address, ": ", problem);
      good_ = false;
      if (main) {
        about(to).error("reach", what, cure_for(problem));
      } else {
        about(to).warning("reach", concat(what, "; it can be at another address"),
                          cure_for(problem));
      }
    }
  }

  void judge_stalls() {
    std::map<int, std::vector<int>> stalls;
    for (const PairResult& pair : examination_.pairs) {
      if (pair.stalled) stalls[pair.from].push_back(pair.to);
    }
    for (const auto& [from, to] : stalls) {
      const auto pair = std::ranges::find_if(
          examination_.pairs,
          [&, node = from](const auto& each) { return each.stalled && each.from == node; });
      good_ = false;
      about(from).error("mtu",
                        concat("small messages to ", names(to),
                               " pass and large ones never arrive: something on "
                               "the way drops packets of ",
                               pair->path_mtu, " bytes and does not say so"),
                        "set the same MTU on all nodes and switches (ip link set DEV mtu 1500), "
                        "and let ICMP pass");
    }
  }

  // Between two nodes, what each believes of the same way.
  void judge_mtu() {
    std::map<std::pair<int, int>, const PairResult*> ways;
    for (const PairResult& pair : examination_.pairs) {
      if (pair.main && pair.reached() && pair.path_mtu > 0) ways[{pair.from, pair.to}] = &pair;
    }
    for (const auto& [ends, way] : ways) {
      const auto back = ways.find({ends.second, ends.first});
      if (ends.first > ends.second || back == ways.end()) continue;
      if (way->path_mtu == back->second->path_mtu) continue;
      const bool narrow_first = way->path_mtu < back->second->path_mtu;
      good_ = false;
      about(narrow_first ? ends.first : ends.second)
          .warning("mtu",
                   concat("its packets to ", name(narrow_first ? ends.second : ends.first),
                          " have up to ", std::min(way->path_mtu, back->second->path_mtu),
                          " bytes, those back ", std::max(way->path_mtu, back->second->path_mtu)),
                   "set the same MTU on all nodes (ip link set DEV mtu)");
    }
  }

  template <typename Value>
  std::optional<double> median(Value value) const {
    std::vector<double> values;
    for (const PairResult& pair : examination_.pairs) {
      if (!pair.main || !pair.reached()) continue;
      if (const std::optional<double> each = value(pair)) values.push_back(*each);
    }
    if (values.empty()) return std::nullopt;
    std::ranges::sort(values);
    return values[values.size() / 2];
  }

  void judge_speed() {
    const auto speed = [](const PairResult& pair) { return pair.bytes_per_second; };
    const auto usual = median(speed);
    if (!usual) return;
    std::map<int, std::vector<const PairResult*>> slow;  // by who sends
    for (const PairResult& pair : examination_.pairs) {
      const bool measured = pair.main && pair.bytes_per_second.has_value();
      if (measured && *pair.bytes_per_second * kSlowFactor < *usual) {
        slow[pair.from].push_back(&pair);
      }
    }
    for (const auto& [from, pairs] : slow) {
      std::vector<int> to;
      for (const PairResult* pair : pairs) to.push_back(pair->to);
      const auto* slowest = *std::ranges::min_element(
          pairs, {}, [](const PairResult* pair) { return *pair->bytes_per_second; });
      good_ = false;
      about(from).warning(
          "bandwidth",
          concat("to ", names(to), " it sends ", in_bits(*slowest->bytes_per_second),
                 "; the median of all pairs is ", in_bits(*usual)),
          "look at its cable, its port (ethtool), who else uses the network, and "
          "whether it is the right one (--local-addr)");
    }
  }

  void judge_latency() {
    const auto usual =
        median([](const PairResult& pair) { return std::optional(pair.latency_us); });
    if (!usual) return;
    for (const PairResult& pair : examination_.pairs) {
      if (!pair.main || !pair.reached()) continue;
      if (pair.latency_us < kLatencyMatters || pair.latency_us < *usual * kLatencyFactor) continue;
      good_ = false;
      about(pair.from).warning(
          "latency",
          concat("to ", name(pair.to), " a round trip takes ", in_time(pair.latency_us),
                 "; the median of all pairs is ", in_time(*usual)),
          "is that node elsewhere, or busy?");
    }
  }

  void say_what_is_well() {
    if (!good_ || examination_.pairs.empty()) return;
    about(0).ok("reach", "nodes reach each other, with small messages and large");
  }

  const Examination& examination_;
  Findings& findings_;
  bool good_ = true;
};

}  // namespace

void judge_pairs(const Examination& examination, Findings& findings) {
  Pairs(examination, findings).judge();
}

}  // namespace lockstep
