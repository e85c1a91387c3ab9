#include "launch/network_choice.h"

#include <arpa/inet.h>
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "launch/network_candidates.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Picks = std::vector<int>;  // an address of each node

class Choice {
 public:
  Choice(const std::vector<SurveyedNode>& nodes, const std::vector<Unreached>& unreached)
      : nodes_(nodes), unreached_(unreached) {
    for (const Unreached& each : unreached) bad_.emplace(each.node, each.address);
  }

  NetworkChoice make() const {
    if (const auto picks = best(/*ruled_out_too=*/false)) {
      return {*picks, describe(*picks)};
    }
    return {{}, describe_failure()};
  }

 private:
  const NodeAddress& at(std::size_t node, int address) const {
    return nodes_[node].addresses[static_cast<std::size_t>(address)];
  }
  const NodeAddress& picked(const Picks& picks, std::size_t node) const {
    return at(node, picks[node]);
  }

  /// The first address of the node that is reached and fits.
  template <typename Fits>
  int first(std::size_t node, bool ruled_out_too, Fits fits) const {
    for (int i = 0; i < static_cast<int>(nodes_[node].addresses.size()); ++i) {
      const NodeAddress& address = at(node, i);
      if (!ruled_out_too && !address.allowed) continue;
      if (!bad_.contains({static_cast<int>(node), i}) && fits(address)) return i;
    }
    return -1;
  }

  template <typename Fits>
  std::optional<Picks> all_with(bool ruled_out_too, Fits fits) const {
    Picks picks;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      picks.push_back(first(node, ruled_out_too, fits));
      if (picks.back() < 0) return std::nullopt;
    }
    return picks;
  }

  /// More is better.
  auto score(const Picks& picks) const {
    int favourites = 0, slowest = std::numeric_limits<int>::max(), v4 = 0;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (picks[node] == 0) ++favourites;
      slowest = std::min(slowest, picked(picks, node).speed);
      if (is_v4(picked(picks, node))) ++v4;
    }
    return std::tuple(favourites, slowest, v4);
  }

  /// The best of those that fit for one value of `key`, of the first node's addresses.
  template <typename Key>
  std::optional<Picks> best_by(bool ruled_out_too, Key key) const {
    std::optional<Picks> best;
    for (const NodeAddress& one : nodes_.front().addresses) {
      const auto wanted = key(one);
      const auto picks = all_with(
          ruled_out_too, [&](const NodeAddress& address) { return key(address) == wanted; });
      if (picks && (!best || score(*picks) > score(*best))) best = picks;
    }
    return best;
  }

  std::optional<Picks> best(bool ruled_out_too) const {
    if (auto picks = best_by(ruled_out_too, network_name)) return picks;
    const auto interface = [](const NodeAddress& address) {
      return std::pair(address.interface, is_v4(address));
    };
    if (auto picks = best_by(ruled_out_too, interface)) return picks;
    if (auto picks = best_by(ruled_out_too, is_v4)) return picks;
    return all_with(ruled_out_too, [](const NodeAddress&) { return true; });
  }

  /// "10.1.0.0/24 (eth1)", or "eth1 (10.1.0.7, 10.2.0.9)" where networks are joined by routers.
  std::string name_of(const Picks& picks) const {
    std::vector<std::string> interfaces, addresses;
    std::set<std::string> networks;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      const NodeAddress& address = picked(picks, node);
      networks.insert(network_name(address));
      addresses.push_back(address.address);
      if (std::ranges::find(interfaces, address.interface) == interfaces.end()) {
        interfaces.push_back(address.interface);
      }
    }
    return networks.size() == 1 ? concat(*networks.begin(), " (", join_words(interfaces), ")")
                                : concat(join_words(interfaces), " (", join_words(addresses), ")");
  }

  std::string describe(const Picks& picks) const {
    std::string text = concat("network: ", name_of(picks), " on all ", nodes_.size(), " nodes");
    for (const Unreached& each : unreached_) {
      // Why it is not the one that the nodes would have taken.
      if (each.address != 0) continue;
      return text +
             concat("; ", name(each.from), " does not reach ", target(each), ": ", each.reason);
    }
    return text;
  }

  const std::string& name(int node) const { return nodes_[static_cast<std::size_t>(node)].host; }

  std::string target(const Unreached& each) const {
    const NodeAddress& address = at(static_cast<std::size_t>(each.node), each.address);
    return concat(name(each.node), " at ", address.address, " (", address.interface, ")");
  }

  /// The node that most of the trouble has to do with: others do not reach it, or it reaches
  /// nobody.
  int suspect() const {
    std::map<int, std::set<int>> partners;
    for (const Unreached& each : unreached_) {
      partners[each.from].insert(each.node);
      partners[each.node].insert(each.from);
    }
    int worst = unreached_.front().node;
    for (const auto& [node, others] : partners) {
      if (others.size() > partners[worst].size()) worst = node;
    }
    return worst;
  }

  std::string describe_failure() const {
    if (unreached_.empty()) {
      for (const SurveyedNode& node : nodes_) {
        if (node.addresses.empty()) return concat("node ", node.host, " has no network address");
      }
      return "no network joins all nodes";  // not reached: with nobody unreached there is one
    }
    const int suspect = this->suspect();
    std::vector<std::string> troubles;
    std::set<std::pair<int, int>> told;
    // What users care for first: the addresses that would be used.
    for (const bool favourites : {true, false}) {
      for (const Unreached& each : unreached_) {
        if (each.from != suspect && each.node != suspect) continue;
        const bool allowed = at(static_cast<std::size_t>(each.node), each.address).allowed;
        if ((each.address == 0) != favourites || !allowed) continue;
        if (!told.emplace(each.from, each.node).second) continue;
        troubles.push_back(
            concat(name(each.from), " does not reach ", target(each), ": ", each.reason));
      }
    }
    // Of one pair nobody can tell whose fault it is.
    const bool is_pair = std::ranges::all_of(unreached_, [&](const Unreached& each) {
      const std::pair one(each.from, each.node), first(unreached_[0].from, unreached_[0].node);
      return one == first || one == std::pair(first.second, first.first);
    });
    return concat("no network joins all nodes",
                  is_pair ? "" : concat(", because of node ", name(suspect)), ": ",
                  join_words(troubles, 3), "; ", advice(suspect));
  }

  std::string advice(int suspect) const {
    const auto free = best(/*ruled_out_too=*/true);
    if (!free) {
      return concat("connect ", name(suspect),
                    " to the others, or let its firewall pass what they send to any port (Gloo and "
                    "NCCL need that); --network-check off starts the job all the same");
    }
    std::vector<std::string> who;
    for (const SurveyedNode& node : nodes_) {
      if (!node.named_by.empty()) who.push_back(concat(node.named_by, " on ", node.host));
    }
    return concat("over ", name_of(*free), " all nodes reach each other: correct or leave out ",
                  join_words(who, 16));
  }

  const std::vector<SurveyedNode>& nodes_;
  const std::vector<Unreached>& unreached_;
  std::set<std::pair<int, int>> bad_;  // node and address
};

}  // namespace

std::string join_words(const std::vector<std::string>& words, std::size_t most) {
  std::string all;
  for (std::size_t i = 0; i < words.size() && i < most; ++i) {
    all += concat(i == 0 ? "" : ", ", words[i]);
  }
  if (words.size() > most) all += concat(" and ", words.size() - most, " more");
  return all;
}

std::string network_name(const NodeAddress& address) {
  const bool v4 = is_v4(address);
  std::array<unsigned char, 16> bytes{};
  if (::inet_pton(v4 ? AF_INET : AF_INET6, address.address.c_str(), bytes.data()) != 1) {
    return address.address;
  }
  for (int bit = address.prefix_length; bit < 128; ++bit) {
    bytes[static_cast<std::size_t>(bit / 8)] &= static_cast<unsigned char>(~(0x80 >> (bit % 8)));
  }
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(v4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
  return concat(text, "/", address.prefix_length);
}

NetworkChoice choose_network(const std::vector<SurveyedNode>& nodes,
                             const std::vector<Unreached>& unreached) {
  return Choice(nodes, unreached).make();
}

}  // namespace lockstep
