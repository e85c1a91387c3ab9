#include <array>
#include <cstring>

#include <ATen/ops/from_blob.h>

#include "comm/group_team.h"
#include "comm/group_team_parts.h"
#include "shm/reduce.h"

namespace lockstep {
namespace {

bool is_narrow(ElementType type) {
  return type == ElementType::float16 || type == ElementType::bfloat16;
}

at::Tensor numbers(ElementType type, const void* data, std::int64_t count) {
  const auto scalar = type == ElementType::float16    ? at::kHalf
                      : type == ElementType::bfloat16 ? at::kBFloat16
                                                      : at::kFloat;
  return at::from_blob(const_cast<void*>(data), {count}, scalar);
}

void convert_numbers(ElementType from, const void* data, ElementType to, void* out,
                     std::int64_t count) {
  numbers(to, out, count).copy_(numbers(from, data, count));
}

}  // namespace

/// One call's way through the machines, as this rank sees it. Every chunk is folded (what comes
/// from the machine before, and this machine's elements in rank order) and handed on; some chunks
/// later, when its result has come back, it is delivered.
///
/// What travels forward is as wide as the sums are: bfloat16 and float16 are added in float and
/// rounded once, by the last machine.
class GroupTeam::ReduceStream {
 public:
  ReduceStream(GroupTeam& team, const std::vector<Segment>& segments, const ReduceSpec& spec)
      : team_(team),
        type_(spec.type),
        wide_{.type = is_narrow(spec.type) ? ElementType::float32 : spec.type, .op = spec.op},
        machine_(team.machine()),
        last_(machine_ + 1 == team.options_.layout.machine_count()),
        leads_(team.leads()) {
    if (last_) wide_.divisor = spec.divisor;
    std::int64_t total = 0;
    for (const Segment& segment : segments) total += segment.count;
    const auto wide_bytes = static_cast<std::int64_t>(bytes_of(wide_.type));
    most_ =
        static_cast<std::int64_t>(team_chunk_bytes(static_cast<std::size_t>(total * wide_bytes))) /
        wide_bytes;
    for (const Segment& segment : segments) cut(segment);
    // A result needs as many hops as there are machines after this one, there and back; chunks
    // beyond that cover the time that a message is under way.
    const int hops = 2 * (team.options_.layout.machine_count() - 1 - machine_);
    lag_ = last_ ? 0 : static_cast<std::size_t>(hops) + kTeamAhead;
    results_.resize(chunks_.size());
  }

  void run() {
    for (std::size_t step = 0; step < chunks_.size() + lag_; ++step) {
      if (step < chunks_.size()) fold(step);
      if (step >= lag_) deliver(step - lag_);
    }
    for (const auto& work : sums_sent_) {
      if (work) team_.await(work);
    }
    for (const auto& work : sent_) team_.await(work);
  }

 private:
  // A chunk of a call; in and out are this rank's.
  using Chunk = Segment;
  static constexpr std::size_t kSlots = 4;

  void cut(const Segment& segment) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(type_));
    for (std::int64_t begin = 0; begin < segment.count; begin += most_) {
      Chunk chunk = segment;
      chunk.in = static_cast<const std::byte*>(segment.in) + begin * bytes;
      if (segment.out != nullptr) chunk.out = static_cast<std::byte*>(segment.out) + begin * bytes;
      chunk.count = std::min(most_, segment.count - begin);
      chunks_.push_back(chunk);
    }
  }

  std::size_t wide_bytes(const Chunk& chunk) const {
    return static_cast<std::size_t>(chunk.count) * bytes_of(wide_.type);
  }
  std::size_t own_bytes(const Chunk& chunk) const {
    return static_cast<std::size_t>(chunk.count) * bytes_of(type_);
  }
  bool narrow() const { return wide_.type != type_; }
  bool root_is_here(const Chunk& chunk) const {
    return chunk.root != kEveryone &&
           team_.options_.layout.machine_of[static_cast<std::size_t>(chunk.root)] == machine_;
  }
  int forward_tag() const { return team_.call_tag_; }
  int result_tag() const { return team_.call_tag_ + 1; }
  int leader(int machine) const { return team_.options_.layout.leader(machine); }
  int last_leader() const { return leader(team_.options_.layout.machine_count() - 1); }

  // Where the sums of a chunk come to be: where they are wanted, if they stay there; nowhere, if
  // another rank adds this rank's elements.
  std::byte* working_memory(std::size_t index) {
    const Chunk& chunk = chunks_[index];
    if (!narrow() && last_ && chunk.root == kEveryone) return static_cast<std::byte*>(chunk.out);
    if (!narrow() && !last_ && !leads_) {
      return static_cast<std::byte*>(const_cast<void*>(chunk.in));
    }
    return team_.scratch(index % kSlots, static_cast<std::size_t>(most_) * bytes_of(wide_.type));
  }
  std::byte* coming_memory(std::size_t index) {
    return team_.scratch(kSlots + index % kTeamAhead,
                         static_cast<std::size_t>(most_) * bytes_of(wide_.type));
  }
  std::byte* narrow_memory(std::size_t index) {
    return team_.scratch(kSlots + kTeamAhead + index % kSlots,
                         static_cast<std::size_t>(most_) * bytes_of(type_));
  }

  void load(const Chunk& chunk, std::byte* sums) const {
    if (narrow()) {
      convert_numbers(type_, chunk.in, wide_.type, sums, chunk.count);
    } else if (sums != chunk.in) {
      std::memcpy(sums, chunk.in, own_bytes(chunk));
    }
  }

  void store(const Chunk& chunk, const std::byte* sums, void* out) const {
    if (narrow()) {
      convert_numbers(wide_.type, sums, type_, out, chunk.count);
    } else if (out != sums) {
      std::memcpy(out, sums, own_bytes(chunk));
    }
  }

  void fold(std::size_t index) {
    const Chunk& chunk = chunks_[index];
    WorkPtr& sums_sent = sums_sent_[index % kSlots];
    if (sums_sent) team_.await(sums_sent);
    sums_sent.reset();
    std::byte* sums = working_memory(index);
    if (leads_ && machine_ > 0) {
      fold_into_what_came(index, sums);
    } else {
      load(chunk, sums);
    }
    fold_here(chunk, sums);
    if (last_) {
      hand_out(index, sums);
      return;
    }
    if (leads_) {
      sums_sent = team_.send(sums, wide_bytes(chunk), leader(machine_ + 1), forward_tag());
    }
    if (chunk.root == kEveryone && leads_) {
      results_[index] = result_from(leader(machine_ + 1), chunk);
    } else if (chunk.root == team_.rank()) {
      results_[index] = result_from(last_leader(), chunk);
    }
  }

  WorkPtr result_from(int peer, const Chunk& chunk) {
    return team_.receive(chunk.out, own_bytes(chunk), peer, result_tag());
  }

  WorkPtr send_result(const void* result, const Chunk& chunk, int peer) {
    return team_.send(result, own_bytes(chunk), peer, result_tag());
  }

  // The leader is the first rank of its machine: what came goes before its own elements.
  void fold_into_what_came(std::size_t index, std::byte* sums) {
    for (; asked_ < std::min(chunks_.size(), index + kTeamAhead); ++asked_) {
      coming_.push_back(team_.receive(coming_memory(asked_), wide_bytes(chunks_[asked_]),
                                      leader(machine_ - 1), forward_tag()));
    }
    const Chunk& chunk = chunks_[index];
    team_.await(coming_.front());
    coming_.pop_front();
    const void* own = chunk.in;
    if (narrow()) {
      load(chunk, sums);
      own = sums;
    }
    ReduceSpec spec = wide_;
    spec.divisor = 1;
    reduce_elements(spec, {coming_memory(index), own}, chunk.count, sums);
  }

  // The elements of this machine's ranks, to whoever goes on with them.
  void fold_here(const Chunk& chunk, std::byte* sums) {
    ShmTeam* here = team_.here_.get();
    if (here == nullptr) {
      if (last_) reduce_elements(wide_, {sums}, chunk.count, sums);
    } else if (last_ && chunk.root == kEveryone) {
      here->all_reduce(sums, chunk.count, wide_);
    } else {
      const bool to_root = last_ && root_is_here(chunk);
      here->reduce(sums, chunk.count, wide_, to_root ? team_.options_.layout.place(chunk.root) : 0);
    }
  }

  // On the last machine.
  void hand_out(std::size_t index, const std::byte* sums) {
    const Chunk& chunk = chunks_[index];
    if (chunk.out != nullptr) store(chunk, sums, chunk.out);
    if (!leads_ || root_is_here(chunk)) return;
    if (chunk.root == kEveryone) {
      sent_.push_back(send_result(chunk.out, chunk, leader(machine_ - 1)));
      return;
    }
    const void* result = sums;
    if (narrow()) {
      store(chunk, sums, narrow_memory(index));
      result = narrow_memory(index);
    }
    sums_sent_[index % kSlots] = send_result(result, chunk, chunk.root);
  }

  // On the machines before it.
  void deliver(std::size_t index) {
    if (last_) return;
    const Chunk& chunk = chunks_[index];
    if (results_[index]) team_.await(results_[index]);
    results_[index].reset();
    if (chunk.root != kEveryone) return;
    if (leads_ && machine_ > 0) {
      sent_.push_back(send_result(chunk.out, chunk, leader(machine_ - 1)));
    }
    if (team_.here_) team_.here_->broadcast({.data = chunk.out, .size = own_bytes(chunk)}, 0);
  }

  GroupTeam& team_;
  ElementType type_;
  ReduceSpec wide_;  // what is done on this machine
  int machine_;
  bool last_, leads_;
  std::int64_t most_ = 0;  // elements in a chunk
  std::size_t lag_ = 0;    // chunks between folding and delivering
  std::vector<Chunk> chunks_;
  std::size_t asked_ = 0;  // chunks for which sums are expected, in coming_
  std::deque<WorkPtr> coming_;
  // By slot of a leader's memory for sums, which must not change until they have been sent.
  std::array<WorkPtr, kSlots> sums_sent_;
  std::vector<WorkPtr> results_;  // of receives, by chunk
  std::vector<WorkPtr> sent_;
};

void GroupTeam::reduce_segments(const std::vector<Segment>& segments, const ReduceSpec& spec) {
  ReduceStream(*this, segments, spec).run();
}

}  // namespace lockstep
