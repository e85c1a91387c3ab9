#include "comm/shm_formation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <ATen/ops/zeros.h>

#include "comm/messages.h"
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

std::unique_ptr<ShmExchange> make_exchange(const GroupImpl& group, SharedSegment segment) {
  return std::make_unique<ShmExchange>(
      std::move(segment), ProcessWatch(peers_here(group)),
      ShmExchange::Options{.rank = group.rank, .size = group.size(), .timeout = group.timeout});
}

// Ranks that answer put this into their word of the segment, so that the first rank sees that they
// write to the same memory.
std::uint64_t answer_to(std::uint64_t mark, int rank) {
  return mark + static_cast<std::uint64_t>(rank);
}

const std::string kAgreed = "agreed";

std::unique_ptr<ShmExchange> offer(const GroupImpl& group,
                                   const c10::intrusive_ptr<c10d::Backend>& gloo, int tag) {
  std::unique_ptr<ShmExchange> exchange;
  std::string refusal;
  bool wanted = true;
  SegmentOffer offered;
  UniqueFd descriptor;
  try {
    const std::size_t bytes = ShmExchange::bytes_needed(group.size());
    peers_here(group);
    SharedSegment segment = SharedSegment::create(bytes);
    descriptor = segment.take_descriptor();
    offered = SegmentOffer::of_this_process(descriptor.get());
    exchange = make_exchange(group, std::move(segment));
    exchange->probe(0) = offered.mark;
  } catch (const Error& error) {
    wanted = dynamic_cast<const NotWanted*>(&error) == nullptr;
    refusal = error.what();
  }
  from_first(group, Messages(gloo, tag), refusal.empty() ? offered.to_text() : "");

  const auto answers = to_first(group, Messages(gloo, tag), "");
  for (int rank = 1; rank < group.size() && refusal.empty(); ++rank) {
    if (answers[rank] != kAgreed) {
      refusal = concat("rank ", group.global_ranks[rank], ": ", answers[rank]);
    } else if (exchange->probe(rank) != answer_to(offered.mark, rank)) {
      refusal = concat("what rank ", group.global_ranks[rank], " writes there does not arrive");
    }
  }
  from_first(group, Messages(gloo, tag), refusal.empty() ? kAgreed : "");
  if (refusal.empty()) return exchange;
  if (wanted && !std::getenv("LOCKSTEP_QUIET")) {
    std::fprintf(stderr,
                 "lockstep: group %s: reductions go over TCP and not through shared memory: %s\n",
                 group.name.c_str(), refusal.c_str());
  }
  return nullptr;
}

std::unique_ptr<ShmExchange> accept(const GroupImpl& group,
                                    const c10::intrusive_ptr<c10d::Backend>& gloo, int tag) {
  std::unique_ptr<ShmExchange> exchange;
  std::string answer = kAgreed;
  const std::string text = from_first(group, Messages(gloo, tag), "");
  if (!text.empty()) {
    try {
      const SegmentOffer offered = SegmentOffer::parse(text);
      peers_here(group);
      exchange = make_exchange(group, SharedSegment::open(offered.process_id, offered.descriptor,
                                                          ShmExchange::bytes_needed(group.size())));
      if (exchange->probe(0) != offered.mark) throw Error("the memory is not the first rank's");
      exchange->probe(group.rank) = answer_to(offered.mark, group.rank);
    } catch (const Error& error) {
      answer = error.what();
    }
  }
  to_first(group, Messages(gloo, tag), answer);
  if (from_first(group, Messages(gloo, tag), "") != kAgreed) return nullptr;
  return exchange;
}

}  // namespace

std::unique_ptr<ShmExchange> form_shm_exchange(const GroupImpl& group,
                                               const c10::intrusive_ptr<c10d::Backend>& gloo,
                                               int tag) {
  return group.rank == 0 ? offer(group, gloo, tag) : accept(group, gloo, tag);
}

}  // namespace lockstep
