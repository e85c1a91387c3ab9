#include "doctor/judge_nodes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr double kClockWarning = 1;  // seconds
constexpr double kClockError = 300;  // what Kerberos and many certificates bear
constexpr int kSlowToSeeMs = 1000;

FindingList about(const DeskNode& node, Findings& findings) {
  return {node.hello.host, findings};
}

std::string in_seconds(double seconds) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), std::abs(seconds) < 10 ? "%.3f s" : "%.0f s", seconds);
  return text.data();
}

void judge_presence(const Examination& examination, Findings& findings) {
  const std::vector<DeskNode>& nodes = examination.nodes;
  const int missing =
      examination.wanted_nodes - static_cast<int>(nodes.size() + examination.silent.size());
  if (missing > 0) {
    std::string names;
    for (const DeskNode& node : nodes) {
      names += concat(names.empty() ? "" : ", ", node.hello.host);
    }
    about(nodes[0], findings)
        .error(
            "nodes",
            concat(missing, " of ", examination.wanted_nodes, " nodes did not come; here: ", names),
            "start lockstep doctor on all of them, with the same --rdzv-endpoint, and see what "
            "the missing ones say");
  }
  for (const std::string& address : examination.silent) {
    about(nodes[0], findings)
        .error(
            "mtu",
            concat("from ", address,
                   " small messages arrive and large ones never: something on "
                   "the way drops large packets and does not say so"),
            "set the same MTU on all nodes and switches (ip link set DEV mtu 1500), and let ICMP "
            "pass");
  }
  for (const DeskNode& node : nodes) {
    if (!node.lost.empty()) {
      about(node, findings)
          .error("nodes", concat("it was lost in the middle of the checks: ", node.lost),
                 "see what its own lockstep doctor says, and whether its network is stable");
    }
    if (node.translated) {
      about(node, findings)
          .warning("nodes",
                   "its connection comes from an address that it does not have: its packets are "
                   "translated on the way (NAT), and others cannot reach it back there",
                   "run nodes in one network: docker run --network=host, hostNetwork: true");
    }
  }
}

// What is worth how much if it differs.
struct Trait {
  const char* name;
  FindingLevel level;
  const char* cure;
};
constexpr std::array<Trait, 7> kTraits = {{
    {"lockstep", FindingLevel::error, "install the same version on all nodes"},
    {"torch", FindingLevel::error, "install the same version on all nodes"},
    {"NCCL", FindingLevel::error, "install the same version on all nodes; see LD_LIBRARY_PATH"},
    {"architecture", FindingLevel::warning, "a native program needs a build for each"},
    {"python", FindingLevel::warning, "use the same environment on all nodes"},
    {"GPU driver", FindingLevel::warning, "install the same version on all nodes"},
    {"GPUs", FindingLevel::note, "--nproc-per-node may differ between nodes, or use gpu"},
}};

std::string value_of(const DeskNode& node, const std::string& trait) {
  const auto found = node.hello.traits.find(trait);
  return found == node.hello.traits.end() ? "" : found->second;
}

void judge_traits(const Examination& examination, Findings& findings) {
  bool equal = true;
  for (const Trait& trait : kTraits) {
    std::map<std::string, int> counts;
    for (const DeskNode& node : examination.nodes) ++counts[value_of(node, trait.name)];
    if (counts.size() < 2) continue;
    equal = false;
    // The first node's among those that most have.
    std::string usual = value_of(examination.nodes[0], trait.name);
    for (const DeskNode& node : examination.nodes) {
      const std::string value = value_of(node, trait.name);
      if (counts[value] > counts[usual]) usual = value;
    }
    for (const DeskNode& node : examination.nodes) {
      const std::string value = value_of(node, trait.name);
      if (value == usual) continue;
      findings.push_back(
          {.node = node.hello.host,
           .check = "equal versions",
           .level = trait.level,
           .what = concat(trait.name, " is ", value.empty() ? "missing" : value, " here and ",
                          usual.empty() ? "missing" : usual, " on ", counts[usual],
                          counts[usual] == 1 ? " other node" : " other nodes"),
           .cure = trait.cure});
    }
  }
  if (equal) {
    about(examination.nodes[0], findings).ok("equal versions", "the same on all nodes");
  }
}

void judge_host_names(const Examination& examination, Findings& findings) {
  std::map<std::string, int> counts;
  for (const DeskNode& node : examination.nodes) ++counts[node.hello.host];
  for (const auto& [host, count] : counts) {
    if (count > 1) {
      FindingList(host, findings)
          .warning("names",
                   concat(count, " nodes are called '", host, "': reports cannot tell them apart"),
                   "hostnamectl set-hostname, or docker run --hostname");
    }
  }
}

void judge_clocks(const Examination& examination, Findings& findings) {
  double largest = 0;
  for (std::size_t at = 1; at < examination.clocks.size(); ++at) {
    const auto& offset = examination.clocks[at];
    if (!offset) continue;
    const double apart = std::max(0.0, std::abs(offset->seconds) - offset->uncertainty);
    largest = std::max(largest, apart);
    if (apart < kClockWarning) continue;
    FindingList list = about(examination.nodes[at], findings);
    const std::string what = concat("its clock is ", in_seconds(std::abs(offset->seconds)),
                                    offset->seconds > 0 ? " ahead of " : " behind ",
                                    examination.nodes[0].hello.host, "'s");
    const char* cure =
        "start chronyd or systemd-timesyncd on both (timedatectl set-ntp true); logs cannot be put "
        "in order, and files seem to be of the future";
    if (apart < kClockError) {
      list.warning("clocks", what, cure);
    } else {
      list.error("clocks", what, cure);
    }
  }
  if (largest < kClockWarning) {
    about(examination.nodes[0], findings)
        .ok("clocks", concat("all within ", in_seconds(std::max(largest, 0.001))));
  }
}

bool is_address_of(const DeskNode& node, const std::string& address) {
  return std::ranges::any_of(node.hello.listeners,
                             [&](const ProbeListener& each) { return each.address == address; });
}

// What one node's resolver says about another's name; empty: it is right.
std::string wrong_with(const NamesAnswer::Name& name, const DeskNode& other) {
  if (name.addresses.empty()) return concat("cannot be resolved: ", name.problem);
  const bool right = std::ranges::any_of(
      name.addresses, [&](const std::string& each) { return is_address_of(other, each); });
  return right ? "" : concat("is ", name.addresses.front(), ", which that node does not have");
}

// What one node's resolver does not know of the others; empty: it knows all.
std::string unknown_names(const Examination& examination, std::size_t asked) {
  constexpr std::size_t kShown = 3;
  const auto& nodes = examination.nodes;
  const auto& names = examination.names[asked]->names;
  std::vector<std::string> wrong;
  std::set<std::string> kinds;
  std::size_t others = 0;
  for (std::size_t at = 0; at < std::min(names.size(), nodes.size()); ++at) {
    if (at == asked || nodes[at].hello.host == nodes[asked].hello.host) continue;
    ++others;
    const std::string what = wrong_with(names[at], nodes[at]);
    if (what.empty()) continue;
    wrong.push_back(concat("'", nodes[at].hello.host, "' ", what));
    kinds.insert(what);
  }
  // Where none is known, all nodes say the same, and it is said once.
  if (others > 1 && wrong.size() == others && kinds.size() == 1) {
    return concat("the names of the other nodes: each ", *kinds.begin());
  }
  std::string text;
  for (std::size_t at = 0; at < std::min(kShown, wrong.size()); ++at) {
    text += concat(text.empty() ? "" : "; ", wrong[at]);
  }
  return wrong.size() > kShown ? concat(text, "; and ", wrong.size() - kShown, " more") : text;
}

void judge_names(const Examination& examination, Findings& findings) {
  bool good = true;
  for (std::size_t asked = 0; asked < examination.names.size(); ++asked) {
    if (!examination.names[asked]) continue;
    const std::string unknown = unknown_names(examination, asked);
    if (unknown.empty()) continue;
    good = false;
    about(examination.nodes[asked], findings)
        .note("names", unknown,
              "lockstep run needs no names, only addresses; scripts, MPI and ssh may: DNS or "
              "/etc/hosts");
  }
  if (good) about(examination.nodes[0], findings).ok("names", "nodes know each other by name");
}

void judge_marks(const Examination& examination, Findings& findings) {
  if (examination.shared_folder.empty()) return;
  const auto& nodes = examination.nodes;
  if (!examination.writer_problem.empty()) {
    about(nodes[0], findings)
        .error("shared folder",
               concat("nothing can be written to ", examination.shared_folder, ": ",
                      examination.writer_problem),
               "let this user write there, or name another");
    return;
  }
  int slowest = 0;
  bool good = true;
  for (std::size_t at = 1; at < examination.marks.size(); ++at) {
    const auto& mark = examination.marks[at];
    if (!mark) continue;  // the node is lost, and that is said
    slowest = std::max(slowest, mark->after_ms);
    if (!mark->problem.empty()) {
      good = false;
      about(nodes[at], findings)
          .error(
              "shared folder",
              concat("a file that ", nodes[0].hello.host, " wrote to ", examination.shared_folder,
                     " is not seen here after ", mark->after_ms / 1000, " s: ", mark->problem),
              "mount the same file system on all nodes; for nfs, less caching (lookupcache=none, "
              "acdirmax)");
    } else if (mark->after_ms > kSlowToSeeMs) {
      good = false;
      about(nodes[at], findings)
          .warning("shared folder",
                   concat("a file that ", nodes[0].hello.host, " wrote was seen here after ",
                          mark->after_ms, " ms"),
                   "for nfs, lookupcache=positive or a smaller acdirmax");
    }
  }
  if (good) {
    about(nodes[0], findings)
        .ok("shared folder", concat("what one node writes to ", examination.shared_folder,
                                    " others see after ", slowest, " ms"));
  }
}

// The job is one: whoever failed for a reason of its own says more than those that it took along.
void judge_small_job(const Examination& examination, Findings& findings) {
  const auto& answers = examination.smoke;
  if (answers.empty()) return;
  std::size_t worst = 0;
  for (std::size_t at = 0; at < answers.size(); ++at) {
    if (!answers[at]) continue;
    const int code = answers[at]->code;
    const int known = answers[worst] ? answers[worst]->code : 0;
    if (code != 0 && (known == 0 || (code == 2 && known != 2))) worst = at;
  }
  if (!answers[worst]) return;  // the node is lost, and that is said
  FindingList list = about(examination.nodes[worst], findings);
  judge_smoke(*answers[worst], list);
}

}  // namespace

Findings judge_nodes(const Examination& examination) {
  Findings findings;
  if (examination.nodes.empty()) return findings;
  judge_presence(examination, findings);
  if (examination.nodes.size() > 1) {
    judge_traits(examination, findings);
    judge_host_names(examination, findings);
    judge_clocks(examination, findings);
    judge_names(examination, findings);
    judge_marks(examination, findings);
    judge_pairs(examination, findings);
  }
  judge_small_job(examination, findings);
  return findings;
}

}  // namespace lockstep
