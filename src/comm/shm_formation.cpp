#include "comm/shm_formation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <variant>

#include <ATen/ops/zeros.h>

#include "comm/messages.h"
#include "comm/process_watch.h"
#include "comm/rank_layout.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kTextBytes = 512;  // of a message

at::Tensor empty_text() {
  return at::zeros({kTextBytes}, at::kByte);
}

at::Tensor pack(const std::string& text) {
  at::Tensor bytes = empty_text();
  std::memcpy(bytes.mutable_data_ptr(), text.data(),
              std::min<std::size_t>(text.size(), kTextBytes - 1));
  return bytes;
}

std::string unpack(const at::Tensor& bytes) {
  return static_cast<const char*>(bytes.const_data_ptr());
}

// Some ranks of a group that agree on something; the first of them asks.
struct Circle {
  c10::intrusive_ptr<c10d::Backend> gloo;
  int tag;
  int rank;                // this one
  std::vector<int> ranks;  // of the group

  bool is_first() const { return rank == ranks.front(); }

  // From the first rank to all others.
  std::string from_first(const std::string& text) const {
    Messages messages(gloo, tag);
    const at::Tensor bytes = is_first() ? pack(text) : empty_text();
    for (const int peer : ranks) {
      if (is_first() && peer != rank) messages.send(bytes, peer);
    }
    if (!is_first()) messages.receive(bytes, ranks.front());
    messages.wait();
    return unpack(bytes);
  }

  // From all others to the first rank, which gets one text per rank.
  std::vector<std::string> to_first(const std::string& text) const {
    Messages messages(gloo, tag);
    std::vector<at::Tensor> all{pack(text)};
    if (is_first()) {
      for (std::size_t index = 1; index < ranks.size(); ++index) {
        all.push_back(empty_text());
        messages.receive(all.back(), ranks[index]);
      }
    } else {
      messages.send(all[0], ranks.front());
    }
    messages.wait();
    std::vector<std::string> texts;
    std::ranges::transform(all, std::back_inserter(texts), unpack);
    return texts;
  }
};

// A refusal that is somebody's wish or the nature of the job is not worth a line.
const std::string kNotWanted = "not wanted: ";

class NotWanted : public Error {
 public:
  explicit NotWanted(const std::string& reason) : Error(kNotWanted + reason) {}
};

std::string without_mark(const std::string& reason) {
  return reason.starts_with(kNotWanted) ? reason.substr(kNotWanted.size()) : reason;
}

const std::string kAgreed = "agreed";

// Throws if this rank cannot or shall not share memory.
void check_willing(const std::vector<int>& ranks) {
  if (!may_share_memory()) throw NotWanted("LOCKSTEP_SHM is 0");
  if (static_cast<int>(ranks.size()) > ShmTeam::kMostRanks) {
    throw Error(concat(ranks.size(), " ranks are on one machine; more than ", ShmTeam::kMostRanks,
                       " cannot share memory"));
  }
}

std::unique_ptr<ShmTeam> make_team(const GroupImpl& group, const std::vector<int>& ranks,
                                   SharedSegment segment) {
  std::vector<PeerIdentity> others;
  for (const int rank : ranks) {
    if (rank != group.rank) others.push_back(group.peers->identity(group.global_ranks[rank]));
  }
  const auto watch = std::make_shared<ProcessWatch>(others);
  return std::make_unique<ShmTeam>(
      std::make_shared<const SharedSegment>(std::move(segment)),
      ShmTeam::Options{.rank = group.rank - ranks.front(),
                       .size = static_cast<int>(ranks.size()),
                       .timeout = group.timeout,
                       .peer_ended = [watch] { return watch->any_ended(); }});
}

// Ranks that answer put this into their word of the segment, so that the first rank sees that they
// write to the same memory.
std::uint64_t answer_to(std::uint64_t mark, int place) {
  return mark + static_cast<std::uint64_t>(place);
}

struct LocalTeam {
  std::unique_ptr<ShmTeam> team;
  std::string refusal;  // empty: agreed. The first rank of a machine knows it
};

LocalTeam offer(const GroupImpl& group, const Circle& here) {
  LocalTeam result;
  SegmentOffer offered;
  UniqueFd descriptor;
  try {
    check_willing(here.ranks);
    SharedSegment segment =
        SharedSegment::create(ShmTeam::bytes_needed(static_cast<int>(here.ranks.size())));
    descriptor = segment.take_descriptor();
    offered = SegmentOffer::of_this_process(descriptor.get());
    result.team = make_team(group, here.ranks, std::move(segment));
    result.team->probe(0) = offered.mark;
  } catch (const Error& error) {
    result.refusal = error.what();
  }
  here.from_first(result.refusal.empty() ? offered.to_text() : "");

  const auto answers = here.to_first("");
  for (std::size_t place = 1; place < answers.size() && result.refusal.empty(); ++place) {
    const std::string who = concat("rank ", group.global_ranks[here.ranks[place]], ": ");
    const auto number = static_cast<int>(place);
    if (answers[place] != kAgreed) {
      result.refusal = who + without_mark(answers[place]);
    } else if (result.team->probe(number) != answer_to(offered.mark, number)) {
      result.refusal = who + "what it writes there does not arrive";
    }
  }
  return result;
}

LocalTeam accept(const GroupImpl& group, const Circle& here) {
  LocalTeam result;
  std::string answer = kAgreed;
  const std::string text = here.from_first("");
  if (!text.empty()) {
    try {
      const SegmentOffer offered = SegmentOffer::parse(text);
      check_willing(here.ranks);
      result.team = make_team(
          group, here.ranks,
          SharedSegment::open(offered.process_id, offered.descriptor,
                              ShmTeam::bytes_needed(static_cast<int>(here.ranks.size()))));
      if (result.team->probe(0) != offered.mark) {
        throw Error("the memory is not the first rank's");
      }
      const int place = group.rank - here.ranks.front();
      result.team->probe(place) = answer_to(offered.mark, place);
    } catch (const Error& error) {
      answer = error.what();
    }
  }
  here.to_first(answer);
  return result;
}

// The same on every rank: who is where, or why that does not help.
std::variant<RankLayout, std::string> find_layout(const GroupImpl& group) {
  std::vector<std::string> machines;
  for (const int rank : group.global_ranks) {
    // A rank that is no lockstep program would not answer.
    if (!group.peers->knows(rank)) return concat("rank ", rank, " is not a lockstep program");
    machines.push_back(group.peers->identity(rank).machine);
  }
  const auto layout = RankLayout::of(machines);
  if (!layout) return kNotWanted + "the ranks of a machine do not follow each other";
  if (layout->all_alone() && group.size() > 1) {
    return kNotWanted + "every rank is on another machine or in a container";
  }
  return *layout;
}

void say_refusal(const GroupImpl& group, const ShmUse& use, const std::string& reason) {
  if (group.rank != 0 || std::getenv("LOCKSTEP_QUIET")) return;
  if (reason.starts_with(kNotWanted) && !use.insisted) return;
  std::fprintf(stderr, "lockstep: group %s: %s over TCP and not through shared memory: %s\n",
               group.name.c_str(), use.what, without_mark(reason).c_str());
}

}  // namespace

std::unique_ptr<GroupTeam> form_group_team(const GroupImpl& group,
                                           const c10::intrusive_ptr<c10d::Backend>& gloo, int tag,
                                           const ShmUse& use) {
  const auto found = find_layout(group);
  if (const auto* reason = std::get_if<std::string>(&found)) {
    say_refusal(group, use, *reason);
    return nullptr;
  }
  const auto& layout = std::get<RankLayout>(found);
  const int machine = layout.machine_of[group.rank];
  const Circle here{
      .gloo = gloo, .tag = tag, .rank = group.rank, .ranks = layout.machines[machine]};
  LocalTeam local;
  if (here.ranks.size() > 1 || layout.machine_count() == 1) {
    local = here.is_first() ? offer(group, here) : accept(group, here);
  } else {
    try {
      check_willing(here.ranks);
    } catch (const Error& error) {
      local.refusal = error.what();
    }
  }

  // All machines or none.
  Circle all{.gloo = gloo, .tag = tag, .rank = group.rank, .ranks = {}};
  for (int rank = 0; rank < group.size(); ++rank) all.ranks.push_back(rank);
  // What only others do not want is told.
  std::string refusal = local.refusal;
  for (const std::string& each : all.to_first(local.refusal)) {
    if (refusal.empty()) refusal = without_mark(each);
  }
  refusal = all.from_first(refusal);
  if (!refusal.empty()) {
    say_refusal(group, use, refusal);
    return nullptr;
  }
  if (layout.machine_count() == 1) return std::make_unique<GroupTeam>(std::move(local.team));
  const auto close = [sockets = group.sockets] {
    if (sockets) sockets->shut_down();
  };
  return std::make_unique<GroupTeam>(
      GroupTeam::Options{
          .rank = group.rank, .layout = layout, .gloo = gloo, .tag = use.tag, .close = close},
      std::move(local.team));
}

}  // namespace lockstep
