#include "lockstep/rank0_first.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/group_impl.h"
#include "comm/places.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// Over the store and not by a collective: what the first rank does (a download, a conversion) may
// take longer than any sensible time-out of a collective, and the others should not hold a core.
void first_then_others(World& world, bool first, const std::string& key, int first_rank,
                       const std::function<void()>& fn) {
  GroupImpl& group = *world.group().impl();
  group.guard->check_usable("rank0_first");
  auto& store = *group.store;
  if (first) {
    try {
      fn();
    } catch (const std::exception& error) {
      store.set(key, std::string("!") + error.what());
      throw;
    } catch (...) {
      store.set(key, std::string("!an exception of an unknown type"));
      throw;
    }
    store.set(key, std::string("done"));
    return;
  }
  std::string word;
  while (word.empty()) {
    const GroupGuard::Waiting waiting(*group.guard, "rank0_first");
    try {
      store.wait({key}, std::chrono::seconds(5));
      word = store.get_to_str(key);
    } catch (const std::exception& error) {
      // A dead first rank must not be waited for; a slow one must.
      const std::string text = error.what();
      const bool slow = text.find("imeout") != std::string::npos;
      if (slow && !group.peers->has_ended(first_rank)) continue;
      throw PeerLost(concat("rank ", world.rank(), ": rank0_first: lost rank ", first_rank,
                            " while it ran the section"),
                     {.rank = world.rank(), .peers = {first_rank}, .operation = "rank0_first"});
    }
  }
  if (word.front() == '!') {
    throw RemoteError(
        first_rank,
        concat("rank ", first_rank, " failed in a section that it runs first: ", word.substr(1)));
  }
  fn();
}

}  // namespace

void rank0_first(World& world, const std::function<void()>& fn) {
  if (world.joins()) return fn();  // the others did it long ago
  const auto sequence = world.group().impl()->store_sequence++;
  first_then_others(world, world.rank() == 0, concat("rank0_first/", sequence), 0, fn);
}

void local_rank0_first(World& world, const std::function<void()>& fn) {
  if (world.joins()) return fn();
  const auto sequence = world.group().impl()->store_sequence++;
  const int first = first_rank_of_node(world);
  first_then_others(world, world.rank() == first,
                    concat("rank0_first/", sequence, "/node_", world.node_rank()), first, fn);
}

}  // namespace lockstep
