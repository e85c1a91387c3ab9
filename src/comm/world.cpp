#include "lockstep/world.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/api/include/torch/cuda.h>
#include <torch/csrc/distributed/c10d/debug.h>

#include "aten/vector_math.h"
#include "comm/mpi_thread.h"
#include "comm/places.h"
#include "comm/shm_backend.h"
#include "comm/store_impl.h"
#include "comm/world_impl.h"
#include "control/spare.h"
#include "core/rank_list.h"
#include "lockstep/c10d.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kWordOfLauncher{30};

// How many worlds this process has formed at a place; see InitOptions::epoch.
std::int64_t& worlds_formed(const InitOptions& options, const Environment& environment) {
  if (options.store) return options.store->impl()->worlds_formed;
  static std::map<std::string, std::int64_t> formed;
  return formed[concat(options.init_method, " ", environment.get("MASTER_ADDR").value_or(""), " ",
                       environment.get("MASTER_PORT").value_or(""))];
}

// The program's own word, then that of whoever starts it.
std::string choose_backend(const InitOptions& options, const Environment& environment,
                           c10::Device device) {
  if (!options.backend.empty()) return options.backend;
  if (const auto wanted = environment.get("LOCKSTEP_BACKEND"); wanted && !wanted->empty()) {
    return *wanted;
  }
  return device.is_cuda() ? "cpu:gloo,cuda:nccl" : "auto";
}

c10::Device choose_device(const std::string& text, int local_rank) {
  const auto cuda_count = static_cast<int>(torch::cuda::device_count());
  if (text.empty() && (cuda_count == 0 || !has_backend("nccl"))) return {c10::DeviceType::CPU};
  c10::Device device(c10::DeviceType::CPU);
  try {
    device = text.empty() ? c10::Device(c10::DeviceType::CUDA) : c10::Device(text);
  } catch (const std::exception&) {
    throw InvalidArgument(concat("device is '", text, "'; it must be cpu, cuda or cuda:N"));
  }
  if (device.is_cpu()) return device;
  if (!device.has_index()) device.set_index(static_cast<c10::DeviceIndex>(local_rank));
  if (device.index() >= cuda_count) {
    throw InvalidArgument(concat("device is ", device.str(), ", but this process sees ", cuda_count,
                                 " CUDA devices; start at most one rank per device"));
  }
  // Before anything is allocated: otherwise every rank opens a context on the first device.
  c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).setDevice(device);
  return device;
}

}  // namespace

// The names of stores and groups are Python's (init_process_group), so that ranks of both languages
// can meet.
void World::Impl::connect() {
  const StorePtr base =
      epoch == 0 ? meeting.store : prefixed(concat("epoch_", epoch), meeting.store);
  own_store = prefixed("lockstep", base);
  const StorePtr top = meeting.prefixed ? prefixed("default_pg", base) : base;
  group_store = prefixed("0/", top);
  user_store = wrap_store(prefixed("user", prefixed(concat("lockstep_", epoch), meeting.store)));
  meeting.store->setTimeout(options.rendezvous_timeout);

  const Arrival arrival({.rank = rank(),
                         .world_size = world_size(),
                         .node_rank = meeting.place.node_rank,
                         .epoch = epoch,
                         .own_store = own_store,
                         .backend_store = group_store});
  try {
    Arrival(arrival).check_in();
    if (connect_limit) await_everyone(arrival);
    // Peers are not known yet; a failure before everybody is connected is told by `arrival`.
    peers = std::make_shared<Peers>(std::vector<std::optional<PeerIdentity>>{});
    std::vector<int> everyone(world_size());
    std::iota(everyone.begin(), everyone.end(), 0);
    std::shared_ptr<GroupImpl> group;
    {
      const ArrivalReporter reporter(arrival, rank());
      group = make_group(spec("0", everyone, top));
    }
    peers = arrival.peers();
    group->peers = peers;
    group->guard->set_peers(peers);
    attach_team(*group);
    groups->add(group);
    world_group = ProcessGroup(group);
    own_store->set(concat("connected/", rank()), std::string("1"));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    std::vector<int> missing;
    try {
      missing = arrival.missing();
    } catch (const std::exception&) {
      const bool in_rank_0 =
          meeting.store_port != 0 && !meeting.place.use_agent_store && !options.store;
      throw PeerLost(concat("init: rank ", rank(), ": the store is gone",
                            in_rank_0 ? ", rank 0 ended" : "", ": ", first_line(reason)),
                     {.rank = rank(),
                      .peers = in_rank_0 ? std::vector<int>{0} : std::vector<int>{},
                      .operation = "init"});
    }
    if (!missing.empty()) {
      throw Timeout(concat("init: rank ", rank(), ": ", list_ranks(missing), " of ", world_size(),
                           " did not arrive within ",
                           std::chrono::duration<double>(options.rendezvous_timeout).count(),
                           " s; check that WORLD_SIZE is ", world_size(),
                           " processes and that they are running"),
                    missing);
    }
    std::vector<int> everyone(world_size());
    std::iota(everyone.begin(), everyone.end(), 0);
    if (const auto dead = arrival.peers()->find_dead(everyone); !dead.empty()) {
      throw PeerLost(
          concat("init: rank ", rank(), ": lost ", list_ranks(dead), " while connecting"),
          {.rank = rank(), .peers = dead, .operation = "init"});
    }
    throw Error(concat("init: rank ", rank(),
                       ": all ranks arrived but could not connect: ", first_line(reason)));
  }
}

// Before connecting: a backend that waits for a rank that has died cannot be called back.
void World::Impl::await_everyone(const Arrival& arrival) const {
  const auto deadline = std::chrono::steady_clock::now() + options.rendezvous_timeout;
  while (!arrival.all_checked_in()) {
    if (groups->revoked()) {
      throw Aborted(concat("init: rank ", rank(), ": the launcher forms another membership"));
    }
    if (std::chrono::steady_clock::now() > deadline) {
      throw std::runtime_error("some did not arrive");  // who, the caller finds out
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

// A world that follows another at the same place must not meet on the old one's store, which lives
// until the old rank 0 has closed it. Rank 0 marks a new store as open for the epoch; the others
// look for the mark, and come again when the store they found ends first.
void World::Impl::meet_in_epoch(const Environment& environment) {
  const auto deadline = std::chrono::steady_clock::now() + options.rendezvous_timeout;
  const std::string mark = concat("lockstep_open/", epoch);
  while (true) {
    meeting = meet(options, environment);
    if (epoch == 0 || options.store || meeting.store_port == 0 || meeting.place.use_agent_store)
      return;
    try {
      if (meeting.hosts_store) {
        meeting.store->set(mark, std::string("1"));
      } else {
        meeting.store->wait({mark}, options.rendezvous_timeout);
      }
      return;
    } catch (const std::exception&) {
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw Timeout(concat("init: rank ", rank(), ": rank 0 did not arrive in epoch ", epoch), {0});
    }
  }
}

// Until every other lockstep rank has left its mark or is dead; at most five seconds.
void World::Impl::await_marks(const std::string& mark) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (int other = 0; other < world_size(); ++other) {
    const std::string key = concat(mark, "/", other);
    while (peers->knows(other) && !own_store->check({key}) && !peers->has_ended(other)) {
      if (std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

// A rank that left while a slower one is still connecting to it would look dead. And the store may
// end with this process while others still read from it, their last answer of a monitored barrier,
// say: so whoever hosts it goes last.
void World::Impl::say_goodbye() {
  try {
    await_marks("connected");
    own_store->set(concat("left/", rank()), std::string("1"));
    if (meeting.hosts_store) await_marks("left");
  } catch (const std::exception&) {
    // The store is gone already: there is nobody to wait for.
  }
}

World init(const InitOptions& options) {
  settle_vector_math();
  wait_as_spare();  // before the environment is looked at: it changes there
  c10d::setDebugLevelFromEnvironment();
  const char* wanted = std::getenv("LOCKSTEP_BACKEND");
  const bool with_mpi = options.backend == "mpi" ||
                        (options.backend.empty() && wanted && wanted == std::string("mpi"));
  if (with_mpi && !options.store && options.init_method == "env://") meet_by_mpi();
  const Environment environment = Environment::of_process();
  auto impl = std::make_unique<World::Impl>();
  impl->options = options;
  std::int64_t& formed = worlds_formed(options, environment);
  impl->epoch = options.epoch.value_or(formed);
  const bool described = !options.store && !options.epoch && !options.rank &&
                         options.init_method == "env://" && formed == 0;
  impl->agent = AgentClient::from_environment(environment);
  const auto membership = impl->agent ? environment.get("LOCKSTEP_EPOCH") : std::nullopt;
  impl->groups = std::make_shared<LiveGroups>(membership ? std::stoull(*membership) : 0);
  if (described && impl->agent && environment.get("LOCKSTEP_JOINS") == "1") {
    impl->joins = true;
    impl->hear_revocations();
    impl->follow(impl->groups->epoch());
  }
  if (options.timeout.count() <= 0 || options.rendezvous_timeout.count() <= 0) {
    throw InvalidArgument("init: timeout and rendezvous_timeout must be positive");
  }
  if (impl->epoch < 0) {
    throw InvalidArgument(concat("init: epoch is ", impl->epoch, "; it is never negative"));
  }
  impl->meet_in_epoch(environment);
  const auto& place = impl->meeting.place;
  impl->slot = place.rank;
  if (const auto slot = environment.get("LOCKSTEP_SLOT"); described && impl->agent && slot) {
    impl->slot = std::stoi(*slot);
  }
  impl->can_follow = described && impl->agent && place.use_agent_store && place.world_size > 1;
  impl->device = choose_device(options.device, place.local_rank);
  impl->backend = choose_backend(options, environment, impl->device);
  try {
    impl->connect();
  } catch (const std::exception&) {
    // Another process may have died before the membership that this one joins was complete.
    if (!impl->joins || !impl->groups->await_revocation(kWordOfLauncher)) throw;
    impl->form_again();
  }
  ++formed;
  return World(std::move(impl));
}

int slot_of(World& world) {
  return world.impl().slot;
}

// Where nobody is missing, ranks of a node follow each other, and local ranks count them. In a
// membership that leaves some out, local ranks have gaps.
int first_rank_of_node(World& world) {
  const World::Impl& impl = world.impl();
  if (!impl.connect_limit) return impl.rank() - impl.meeting.place.local_rank;
  return impl.peers->first_on_node(impl.meeting.place.node_rank).value_or(impl.rank());
}

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::World(World&&) noexcept = default;

World& World::operator=(World&& other) noexcept {
  destroy();
  impl_ = std::move(other.impl_);
  return *this;
}

World::~World() {
  destroy();
}

int World::rank() const {
  return impl_->rank();
}
int World::world_size() const {
  return impl_->world_size();
}
int World::local_rank() const {
  return impl_->meeting.place.local_rank;
}
int World::local_world_size() const {
  return impl_->meeting.place.local_world_size;
}
int World::node_rank() const {
  return impl_->meeting.place.node_rank;
}
c10::Device World::device() const {
  return impl_->device;
}
std::int64_t World::epoch() const {
  return impl_->epoch;
}
bool World::joins() const {
  return impl_->joins;
}
void World::report(std::int64_t step, std::string_view phase) {
  if (impl_->agent) impl_->agent->report(step, phase);
}

bool World::stop_requested() const {
  return impl_->agent && impl_->agent->stop_requested();
}

std::optional<std::chrono::milliseconds> World::stop_deadline() const {
  return impl_->agent ? impl_->agent->stop_deadline() : std::nullopt;
}

Store& World::store() {
  impl_->check_alive("store");
  return *impl_->user_store;
}
ProcessGroup& World::group() {
  return impl_->world_group;
}

ProcessGroup World::new_group(const NewGroupOptions& options) {
  impl_->check_alive("new_group");
  std::vector<int> ranks = options.ranks;
  std::ranges::sort(ranks);
  if (ranks.empty()) throw InvalidArgument("new_group: ranks is empty");
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size()) {
      throw InvalidArgument(
          concat("new_group: rank ", ranks[i], " is outside [0, ", world_size(), ")"));
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      throw InvalidArgument(concat("new_group: rank ", ranks[i], " is listed twice"));
    }
  }
  // Ranks that are left out count too, so that the next group has the same name everywhere.
  const std::string name = std::to_string(++impl_->group_count);
  if (std::ranges::find(ranks, rank()) == ranks.end()) return ProcessGroup();

  auto spec = impl_->spec(name, std::move(ranks), impl_->group_store);
  if (options.timeout.count() > 0) spec.timeout = options.timeout;
  if (!options.backend.empty()) spec.backend = options.backend;
  const MeteredWait waiting(spec.meter.get(), "new_group");
  try {
    auto group = make_group(spec);
    attach_team(*group);
    impl_->groups->add(group);
    return ProcessGroup(group);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    throw Timeout(concat("new_group: rank ", rank(), ": ", list_ranks(spec.global_ranks),
                         " could not all connect: ", first_line(reason)));
  }
}

void World::abort() {
  impl_->groups->abort();
}

void World::destroy() {
  if (!impl_ || impl_->destroyed) return;
  impl_->destroyed = true;
  if (impl_->world_group.impl() && impl_->world_group.impl()->guard->working())
    impl_->say_goodbye();
  impl_->groups->leave();
  impl_->user_store.reset();
  impl_->own_store.reset();
  impl_->group_store.reset();
  impl_->meeting.store.reset();
  impl_->options.store.reset();
}

}  // namespace lockstep
