#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "comm/group_team_parts.h"

// What every rank gets from every other.
namespace lockstep {

void GroupTeam::all_gather(ConstBytes input, const std::vector<void*>& outputs) {
  if (one_machine()) return here_->all_gather(input, outputs);
  call(ShmTeam::announcement(ShmTeam::Kind::all_gather, input.size),
       [&] { gather_blocks(input, outputs); });
}

// Some pieces are under way while the one before them is handed out.
void GroupTeam::gather_blocks(ConstBytes input, const std::vector<void*>& outputs) {
  if (here_) {
    const auto begin = outputs.begin() + first_here();
    here_->all_gather(input, {begin, begin + here_->size()});
  } else if (input.size > 0) {
    std::memmove(outputs[static_cast<std::size_t>(rank())], input.data, input.size);
  }
  // So that what a machine sends at once has the size of a chunk, and each part is aligned.
  std::size_t most = 1;
  for (const auto& ranks : options_.layout.machines) most = std::max(most, ranks.size());
  const std::size_t whole = team_chunk_bytes(input.size * most);
  const TeamPieces pieces(input.size, std::max<std::size_t>(1, whole / most / 64) * 64);
  std::deque<BlockExchange> under_way;
  for (std::size_t index = 0, asked = 0; index < pieces.count(); ++index) {
    for (; asked < std::min(pieces.count(), index + kTeamAhead); ++asked) {
      under_way.push_back({.offset = pieces.begin(asked),
                           .bytes = pieces.size(asked),
                           .slot = asked % kTeamAhead,
                           .coming = {},
                           .sent = {}});
      if (leads()) start_exchange(under_way.back(), outputs);
    }
    finish_exchange(under_way.front(), outputs);
    under_way.pop_front();
  }
}

// A machine's parts of a piece, side by side.
GroupTeam::Bytes GroupTeam::block_of(const BlockExchange& exchange, int machine) {
  const std::size_t bytes = ranks_of(machine).size() * exchange.bytes;
  const auto machines = static_cast<std::size_t>(options_.layout.machine_count());
  return {scratch(exchange.slot * machines + static_cast<std::size_t>(machine), bytes), bytes};
}

template <typename Move>
void GroupTeam::each_part(const BlockExchange& exchange, int machine,
                          const std::vector<void*>& outputs, Move move) {
  auto* part = static_cast<std::byte*>(block_of(exchange, machine).data);
  for (const int owner : ranks_of(machine)) {
    move(static_cast<std::byte*>(outputs[static_cast<std::size_t>(owner)]) + exchange.offset, part);
    part += exchange.bytes;
  }
}

// Leaders send what their machine has to all others. Blocks travel as one message each, whatever
// the number of ranks.
void GroupTeam::start_exchange(BlockExchange& exchange, const std::vector<void*>& outputs) {
  const int machines = options_.layout.machine_count();
  each_part(exchange, machine(), outputs,
            [&](const std::byte* own, std::byte* part) { std::memcpy(part, own, exchange.bytes); });
  for (int step = 1; step < machines; ++step) {
    const int from = (machine() + machines - step) % machines;
    const Bytes block = block_of(exchange, from);
    exchange.coming.push_back(
        receive(block.data, block.size, options_.layout.leader(from), call_tag_));
  }
  const Bytes own = block_of(exchange, machine());
  for (int step = 1; step < machines; ++step) {
    const int to = (machine() + step) % machines;
    exchange.sent.push_back(send(own.data, own.size, options_.layout.leader(to), call_tag_));
  }
}

// Every machine hands out what came.
void GroupTeam::finish_exchange(BlockExchange& exchange, const std::vector<void*>& outputs) {
  const int machines = options_.layout.machine_count();
  for (int step = 1; step < machines; ++step) {
    const int from = (machine() + machines - step) % machines;
    if (leads()) await(exchange.coming[static_cast<std::size_t>(step) - 1]);
    if (here_) here_->broadcast(block_of(exchange, from), 0);
    each_part(exchange, from, outputs, [&](std::byte* out, const std::byte* part) {
      std::memcpy(out, part, exchange.bytes);
    });
  }
  for (const auto& work : exchange.sent) await(work);
}

}  // namespace lockstep
