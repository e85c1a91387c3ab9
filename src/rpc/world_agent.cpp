#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lockstep/rpc.h"
#include "lockstep/store.h"
#include "lockstep/world.h"
#include "rpc/agent_core.h"
#include "rpc/sockets.h"

namespace lockstep::rpc {
namespace {

class StoreDirectory : public Directory {
 public:
  StoreDirectory(Store store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override {
    store_.set(prefix_ + key, value);
  }
  std::optional<std::string> find(const std::string& key) override {
    if (!store_.check({prefix_ + key})) return std::nullopt;
    return store_.get(prefix_ + key);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    if (store_.add(prefix_ + key + "/count", 1) == 1) store_.set(prefix_ + key, value);
    return store_.get(prefix_ + key);
  }

 private:
  Store store_;
  std::string prefix_;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Where other machines reach this one; empty where there are none.
std::string choose_address(const World& world) {
  const bool one_machine = world.local_world_size() == world.world_size();
  if (one_machine && variable("LOCKSTEP_MACHINE").empty()) return {};
  if (const std::string names = variable("GLOO_SOCKET_IFNAME"); !names.empty()) {
    const std::string name = names.substr(0, names.find(','));
    const std::string address = address_of_interface(name);
    if (!address.empty()) return address;
    throw InvalidArgument(concat("rpc: GLOO_SOCKET_IFNAME names \"", name,
                                 "\", which is no interface with an address"));
  }
  const std::string master = variable("MASTER_ADDR");
  const std::string address = master.empty() ? "" : address_towards(master);
  if (!address.empty()) return address;
  throw InvalidArgument(
      concat("rpc: no way leads to MASTER_ADDR \"", master, "\"; give AgentOptions::address"));
}

AgentOptions completed(const World& world, AgentOptions options) {
  if (options.name.empty()) options.name = concat("worker", world.rank());
  if (options.address.empty()) options.address = choose_address(world);
  return options;
}

// How many agents this rank has had in this epoch, with the new one. All ranks make as many, so
// that those of one number meet, and what earlier ones left in the store is not taken for theirs.
int count_agent(const World& world) {
  static std::mutex mutex;
  static std::map<std::pair<std::int64_t, int>, int> counts;
  const std::lock_guard lock(mutex);
  return ++counts[{world.epoch(), world.rank()}];
}

}  // namespace

std::shared_ptr<Directory> directory_in_store(const Store& store, const std::string& prefix) {
  return std::make_shared<StoreDirectory>(store, prefix);
}

Agent::Agent(World& world, AgentOptions options)
    : Agent(directory_in_store(world.store(),
                               concat("rpc/", world.epoch(), "/", count_agent(world), "/")),
            completed(world, std::move(options))) {
  core_->set_place(world.rank(), world.world_size());
}

}  // namespace lockstep::rpc
