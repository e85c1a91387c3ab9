#include "comm/shm_formation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <ATen/ops/zeros.h>

#include "comm/messages.h"
#include "comm/process_watch.h"
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

// From the first rank to all others.
std::string from_first(const GroupImpl& group, Messages messages, const std::string& text) {
  const at::Tensor bytes = group.rank == 0 ? pack(text) : empty_text();
  if (group.rank == 0) {
    for (int peer = 1; peer < group.size(); ++peer) messages.send(bytes, peer);
  } else {
    messages.receive(bytes, 0);
  }
  messages.wait();
  return unpack(bytes);
}

// From all others to the first rank, which gets one text per rank.
std::vector<std::string> to_first(const GroupImpl& group, Messages messages,
                                  const std::string& text) {
  std::vector<at::Tensor> all(group.size());
  all[group.rank] = pack(text);
  if (group.rank == 0) {
    for (int peer = 1; peer < group.size(); ++peer) {
      messages.receive(all[peer] = empty_text(), peer);
    }
  } else {
    messages.send(all[group.rank], 0);
  }
  messages.wait();
  std::vector<std::string> texts;
  if (group.rank == 0) std::ranges::transform(all, std::back_inserter(texts), unpack);
  return texts;
}

// A reason that is somebody's wish or the nature of the job, and not worth a line.
class NotWanted : public Error {
 public:
  using Error::Error;
};

// Those of the other ranks. Throws if this rank cannot or shall not share memory with them.
std::vector<PeerIdentity> peers_here(const GroupImpl& group) {
  if (!may_share_memory()) throw NotWanted("LOCKSTEP_SHM is 0");
  if (group.size() > ShmTeam::kMostRanks) {
    throw Error(concat("it has ", group.size(), " ranks; more than ", ShmTeam::kMostRanks,
                       " cannot share memory"));
  }
  const PeerIdentity self = PeerIdentity::of_this_process();
  std::vector<PeerIdentity> peers;
  for (int rank = 0; rank < group.size(); ++rank) {
    const int global_rank = group.global_ranks[rank];
    if (!group.peers->knows(global_rank) ||
        group.peers->identity(global_rank).machine != self.machine) {
      throw NotWanted(concat("rank ", global_rank, " is on another machine or in a container"));
    }
    if (rank != group.rank) peers.push_back(group.peers->identity(global_rank));
  }
  return peers;
}

std::unique_ptr<ShmTeam> make_team(const GroupImpl& group, SharedSegment segment) {
  const auto watch = std::make_shared<ProcessWatch>(peers_here(group));
  return std::make_unique<ShmTeam>(
      std::make_shared<const SharedSegment>(std::move(segment)),
      ShmTeam::Options{.rank = group.rank,
                       .size = group.size(),
                       .timeout = group.timeout,
                       .peer_ended = [watch] { return watch->any_ended(); }});
}

// Ranks that answer put this into their word of the segment, so that the first rank sees that they
// write to the same memory.
std::uint64_t answer_to(std::uint64_t mark, int rank) {
  return mark + static_cast<std::uint64_t>(rank);
}

const std::string kAgreed = "agreed";

void say_refusal(const GroupImpl& group, const ShmUse& use, const std::string& reason) {
  if (std::getenv("LOCKSTEP_QUIET")) return;
  std::fprintf(stderr, "lockstep: group %s: %s over TCP and not through shared memory: %s\n",
               group.name.c_str(), use.what, reason.c_str());
}

std::unique_ptr<ShmTeam> offer(const GroupImpl& group,
                               const c10::intrusive_ptr<c10d::Backend>& gloo, int tag,
                               const ShmUse& use) {
  std::unique_ptr<ShmTeam> team;
  std::string refusal;
  bool wanted = true;
  SegmentOffer offered;
  UniqueFd descriptor;
  try {
    const std::size_t bytes = ShmTeam::bytes_needed(group.size());
    peers_here(group);
    SharedSegment segment = SharedSegment::create(bytes);
    descriptor = segment.take_descriptor();
    offered = SegmentOffer::of_this_process(descriptor.get());
    team = make_team(group, std::move(segment));
    team->probe(0) = offered.mark;
  } catch (const Error& error) {
    wanted = dynamic_cast<const NotWanted*>(&error) == nullptr;
    refusal = error.what();
  }
  from_first(group, Messages(gloo, tag), refusal.empty() ? offered.to_text() : "");

  const auto answers = to_first(group, Messages(gloo, tag), "");
  for (int rank = 1; rank < group.size() && refusal.empty(); ++rank) {
    if (answers[rank] != kAgreed) {
      refusal = concat("rank ", group.global_ranks[rank], ": ", answers[rank]);
    } else if (team->probe(rank) != answer_to(offered.mark, rank)) {
      refusal = concat("what rank ", group.global_ranks[rank], " writes there does not arrive");
    }
  }
  from_first(group, Messages(gloo, tag), refusal.empty() ? kAgreed : "");
  if (refusal.empty()) return team;
  if (wanted || use.insisted) say_refusal(group, use, refusal);
  return nullptr;
}

std::unique_ptr<ShmTeam> accept(const GroupImpl& group,
                                const c10::intrusive_ptr<c10d::Backend>& gloo, int tag) {
  std::unique_ptr<ShmTeam> team;
  std::string answer = kAgreed;
  const std::string text = from_first(group, Messages(gloo, tag), "");
  if (!text.empty()) {
    try {
      const SegmentOffer offered = SegmentOffer::parse(text);
      peers_here(group);
      team = make_team(group, SharedSegment::open(offered.process_id, offered.descriptor,
                                                  ShmTeam::bytes_needed(group.size())));
      if (team->probe(0) != offered.mark) throw Error("the memory is not the first rank's");
      team->probe(group.rank) = answer_to(offered.mark, group.rank);
    } catch (const Error& error) {
      answer = error.what();
    }
  }
  to_first(group, Messages(gloo, tag), answer);
  if (from_first(group, Messages(gloo, tag), "") != kAgreed) return nullptr;
  return team;
}

}  // namespace

std::unique_ptr<ShmTeam> form_shm_team(const GroupImpl& group,
                                       const c10::intrusive_ptr<c10d::Backend>& gloo, int tag,
                                       const ShmUse& use) {
  // A rank that is no lockstep program would not answer. All know of it, so nobody asks.
  for (const int rank : group.global_ranks) {
    if (group.peers->knows(rank)) continue;
    if (group.rank == 0) {
      say_refusal(group, use, concat("rank ", rank, " is not a lockstep program"));
    }
    return nullptr;
  }
  return group.rank == 0 ? offer(group, gloo, tag, use) : accept(group, gloo, tag);
}

}  // namespace lockstep
