#include "comm/arrival.h"

#include <cstdio>

#include "core/rank_list.h"
#include "lockstep/error.h"

namespace lockstep {

std::string Arrival::identity_key(int rank) const {
  return concat("identity/", rank);
}

void Arrival::check_in() {
  auto& store = *options_.own_store;
  const std::string own_size = std::to_string(options_.world_size);
  const std::string agreed_size = store.compareSet("world_size", std::string(), own_size);
  if (agreed_size != own_size) {
    throw InvalidArgument(concat("init: rank ", options_.rank, " has a world_size (WORLD_SIZE) of ",
                                 own_size, ", but the rank that came first has ", agreed_size));
  }
  if (store.add(concat("arrived/", options_.rank), 1) > 1) {
    const auto other = store.check({identity_key(options_.rank)})
                           ? PeerIdentity::parse(store.get_to_str(identity_key(options_.rank)))
                           : std::nullopt;
    throw InvalidArgument(
        concat("init: rank ", options_.rank, " of epoch ", options_.epoch, " is taken",
               other ? concat(" by process ", other->process_id, " on ", other->host) : "",
               "; every process needs a RANK of its own, and worlds that follow each other on one "
               "store need different epochs (or the store's file is left from an earlier job)"));
  }
  store.set(identity_key(options_.rank),
            PeerIdentity::of_this_process(options_.node_rank).to_text());
}

Arrival Arrival::on_own_connection() const {
  Options options = options_;
  options.own_store = options_.own_store->clone();
  options.backend_store = options_.backend_store->clone();
  return Arrival(std::move(options));
}

bool Arrival::all_checked_in() const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < options_.world_size; ++rank) keys.push_back(identity_key(rank));
  return options_.own_store->check(keys);
}

std::vector<int> Arrival::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const bool came = options_.own_store->check({identity_key(rank)}) ||
                      options_.backend_store->check({concat("cpu//0/", rank)});
    if (!came) ranks.push_back(rank);
  }
  return ranks;
}

std::shared_ptr<const Peers> Arrival::peers() const {
  std::vector<std::optional<PeerIdentity>> identities(options_.world_size);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (options_.own_store->check({identity_key(rank)})) {
      identities[rank] = PeerIdentity::parse(options_.own_store->get_to_str(identity_key(rank)));
    }
  }
  return std::make_shared<Peers>(std::move(identities));
}

ArrivalReporter::ArrivalReporter(const Arrival& arrival, int rank)
    : thread_([this, arrival, rank] {
        std::unique_lock lock(mutex_);
        const auto start = std::chrono::steady_clock::now();
        while (!stop_.wait_for(lock, std::chrono::seconds(10), [this] { return stopping_; })) {
          const auto waited = std::chrono::steady_clock::now() - start;
          try {
            const auto missing = arrival.on_own_connection().missing();
            if (missing.empty()) continue;
            std::fprintf(stderr, "lockstep: rank %d: waiting for %s (%.0f s)\n", rank,
                         list_ranks(missing).c_str(),
                         std::chrono::duration<double>(waited).count());
          } catch (const std::exception&) {
            return;  // the store is gone; whoever waits on it will say so
          }
        }
      }) {}

ArrivalReporter::~ArrivalReporter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

}  // namespace lockstep
