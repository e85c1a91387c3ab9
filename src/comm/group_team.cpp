#include "comm/group_team.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "comm/group_team_parts.h"
#include "lockstep/error.h"
#include "shm/reduce.h"

namespace lockstep {
namespace {

// Up to this size, one hop to everybody beats a chain that carries each byte once.
constexpr std::size_t kDirectBytes = 64 << 10;
// Up to this size, and this much of all ranks together, everybody adds by itself.
constexpr std::size_t kExchangedBytes = 16 << 10, kExchangedTotal = 256 << 10;

RankLayout layout_of_one_machine(int ranks) {
  RankLayout layout;
  layout.machines.emplace_back(static_cast<std::size_t>(ranks));
  std::iota(layout.machines[0].begin(), layout.machines[0].end(), 0);
  layout.machine_of.assign(static_cast<std::size_t>(ranks), 0);
  return layout;
}

at::Tensor message(const void* data, std::size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

}  // namespace

GroupTeam::GroupTeam(std::unique_ptr<ShmTeam> here) : here_(std::move(here)) {
  options_.rank = here_->rank();
  options_.layout = layout_of_one_machine(here_->size());
}

GroupTeam::GroupTeam(Options options, std::unique_ptr<ShmTeam> here)
    : options_(std::move(options)), here_(std::move(here)) {}

void GroupTeam::set_busy_core(bool busy) {
  if (here_) here_->set_busy_core(busy);
}

void GroupTeam::set_timeout(std::chrono::milliseconds timeout) {
  if (here_) here_->set_timeout(timeout);
}

void GroupTeam::poison() {
  if (here_) here_->poison();
  if (mail_) mail_->leave();
}

bool GroupTeam::has_mail_with(int peer) const {
  return mail_ && peer != rank() && peer >= 0 && peer < size() && is_here(peer);
}

GroupTeam::WorkPtr GroupTeam::send(const void* data, std::size_t bytes, int peer, int tag) {
  std::vector<at::Tensor> tensors{message(data, bytes)};
  return options_.gloo->send(tensors, peer, tag);
}

GroupTeam::WorkPtr GroupTeam::receive(void* data, std::size_t bytes, int peer, int tag) {
  std::vector<at::Tensor> tensors{message(data, bytes)};
  return options_.gloo->recv(tensors, peer, tag);
}

std::byte* GroupTeam::scratch(std::size_t index, std::size_t bytes) {
  while (scratch_.size() <= index) scratch_.emplace_back();
  auto& buffer = scratch_[index];
  if (buffer.size() < bytes) buffer.resize(bytes);
  return buffer.data();
}

void GroupTeam::barrier() {
  if (one_machine()) return here_->barrier();
  call(ShmTeam::announcement(ShmTeam::Kind::barrier, 0), [&] {
    if (here_) here_->barrier();
    if (leads()) meet_leaders();
    if (here_) here_->barrier();
  });
}

// In round r everyone tells the one 2^r further on what it knows: that so many have come.
void GroupTeam::meet_leaders() {
  const int machines = options_.layout.machine_count();
  for (int distance = 1; distance < machines; distance *= 2) {
    char told = 1, heard = 0;
    const auto at = [&](int other) { return options_.layout.leader(other % machines); };
    const WorkPtr received = receive(&heard, 1, at(machine() + machines - distance), call_tag_);
    const WorkPtr sent = send(&told, 1, at(machine() + distance), call_tag_);
    await(received);
    await(sent);
  }
}

void GroupTeam::all_reduce(void* data, std::int64_t count, const ReduceSpec& spec) {
  if (one_machine()) return here_->all_reduce(data, count, spec);
  check_reducible(spec);
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(spec.type);
  if (bytes <= kExchangedBytes && bytes * static_cast<std::size_t>(size()) <= kExchangedTotal) {
    return all_reduce_small(data, count, spec);
  }
  call(
      ShmTeam::announcement(ShmTeam::Kind::all_reduce, static_cast<std::uint64_t>(count), 0, &spec),
      [&] { reduce_segments({{.in = data, .out = data, .count = count}}, spec); });
}

void GroupTeam::all_reduce_small(void* data, std::int64_t count, const ReduceSpec& spec) {
  const std::size_t bytes = static_cast<std::size_t>(count) * bytes_of(spec.type);
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(size()));
  std::vector<void*> outputs;
  std::vector<const void*> parts;
  for (int rank = 0; rank < size(); ++rank) {
    outputs.push_back(all.data() + bytes * static_cast<std::size_t>(rank));
    parts.push_back(outputs.back());
  }
  call(
      ShmTeam::announcement(ShmTeam::Kind::all_reduce, static_cast<std::uint64_t>(count), 0, &spec),
      [&] { gather_blocks({.data = data, .size = bytes}, outputs); });
  reduce_elements(spec, parts, count, data);
}

void GroupTeam::reduce(void* data, std::int64_t count, const ReduceSpec& spec, int root) {
  if (one_machine()) return here_->reduce(data, count, spec, root);
  check_reducible(spec);
  call(ShmTeam::announcement(ShmTeam::Kind::reduce, static_cast<std::uint64_t>(count), root, &spec),
       [&] {
         reduce_segments(
             {{.in = data, .out = rank() == root ? data : nullptr, .count = count, .root = root}},
             spec);
       });
}

void GroupTeam::reduce_scatter(const std::vector<const void*>& inputs, void* out,
                               std::int64_t count, const ReduceSpec& spec) {
  if (one_machine()) return here_->reduce_scatter(inputs, out, count, spec);
  check_reducible(spec);
  std::vector<Segment> segments;
  for (int root = 0; root < size(); ++root) {
    segments.push_back({.in = inputs[static_cast<std::size_t>(root)],
                        .out = rank() == root ? out : nullptr,
                        .count = count,
                        .root = root});
  }
  call(ShmTeam::announcement(ShmTeam::Kind::reduce_scatter, static_cast<std::uint64_t>(count), 0,
                             &spec),
       [&] { reduce_segments(segments, spec); });
}

// From the root to the leader of the next machine, and on: each byte leaves every machine once. Of
// little data the root sends to all leaders by itself.
void GroupTeam::broadcast(Bytes data, int root) {
  if (one_machine()) return here_->broadcast(data, root);
  const int machines = options_.layout.machine_count();
  const int first = options_.layout.machine_of[static_cast<std::size_t>(root)];
  const int position = (machine() - first + machines) % machines;
  const auto leader_at = [&](int place) {
    return options_.layout.leader((first + place) % machines);
  };
  const bool direct = data.size <= kDirectBytes;
  std::vector<int> children;
  if (rank() == (position == 0 ? root : leader_at(position))) {
    if (direct && position == 0) {
      for (int place = 1; place < machines; ++place) children.push_back(leader_at(place));
    } else if (!direct && position + 1 < machines) {
      children.push_back(leader_at(position + 1));
    }
  }
  const bool receives = position > 0 && leads();
  const int parent = direct || position <= 1 ? root : leader_at(position - 1);
  const int source_here = position == 0 ? options_.layout.place(root) : 0;

  call(ShmTeam::announcement(ShmTeam::Kind::broadcast, data.size, root), [&] {
    const TeamPieces pieces(data.size, team_chunk_bytes(data.size));
    std::deque<WorkPtr> coming;
    std::vector<WorkPtr> sent;
    const auto at = [&](std::size_t index) {
      return static_cast<std::byte*>(data.data) + pieces.begin(index);
    };
    std::size_t asked = 0;
    for (std::size_t index = 0; index < pieces.count(); ++index) {
      for (; receives && asked < std::min(pieces.count(), index + kTeamAhead); ++asked) {
        coming.push_back(receive(at(asked), pieces.size(asked), parent, call_tag_));
      }
      if (receives) {
        await(coming.front());
        coming.pop_front();
      }
      for (const int child : children) {
        sent.push_back(send(at(index), pieces.size(index), child, call_tag_));
      }
      if (here_) here_->broadcast({.data = at(index), .size = pieces.size(index)}, source_here);
    }
    for (const auto& work : sent) await(work);
  });
}

}  // namespace lockstep
