#pragma once

#include <functional>
#include <map>
#include <set>
#include <utility>

#include "launch/messages.h"
#include "sim/event_queue.h"
#include "sim/random.h"

namespace lockstep::sim {

/// Which membership a worker meets the others in: the life of the coordinator, and the epoch.
using WorldKey = std::pair<int, Epoch>;

/// What workers do that can be carried over: they meet, take the newest state that one of them has,
/// and then make steps, each of which needs all of them and is committed by each for itself. The
/// rules of recovery are checked here, where the state of all is known.
///
/// Workers are numbers. What they say to their agents goes through the callbacks.
class Training {
 public:
  struct Callbacks {
    std::function<void(int worker, const RankRecovers&)> recovers;
    std::function<void(int worker)> leaving;
    std::function<void(int worker)> ended;   // with success
    std::function<void(int worker)> at_end;  // has committed the last step and waits for the others
    std::function<void()> ends_without_one;  // that has died where all are, or is left out
    std::function<void()> cut_short_at_end;  // one hears of another world where all had come to it
  };

  Training(EventQueue& queue, Random& random) : queue_(queue), random_(random) {}
  void set_callbacks(Callbacks callbacks) { callbacks_ = std::move(callbacks); }
  struct Length {
    int steps = 1;
    Time step_time{0};
    Time latest_start{0};  // after all have met for the first time
  };
  void set_length(const Length& length) { length_ = length; }

  struct Arrival {
    int worker = 0;
    WorldKey world;
    int rank = 0;
    int world_size = 1;
    int slots = 1;       // of the job, which its ranks share out
    bool joins = false;  // it was started in place of another
  };
  /// The worker meets the others of this world.
  void arrive(const Arrival& arrival);
  /// It has heard that its world is no more; what it had begun there is void.
  void revoke(int worker);
  void die(int worker);
  /// Its node's launcher is gone: it cannot be carried over, and dies in a moment.
  void orphan(int worker);
  /// The others will go on without it, and it is killed when its agent hears of that.
  void doom(int worker) { doomed_.insert(worker); }

  bool has_state(int worker) const;
  /// A rule about what is carried over: nobody who has no state.
  void check_carried_over(int worker) const;
  /// Whether the job must survive these workers' deaths: another has had the state for a while, so
  /// that the coordinator knows it (it waits for the words of the rest), and nobody goes yet.
  bool is_survivable(const std::set<int>& workers) const;
  int recoveries() const { return recoveries_; }

 private:
  struct Worker {
    WorldKey world{0, 0};  // epoch 0: none
    int rank = 0;
    bool joins = false;
    bool has_state = false;
    Time state_since{0};
    bool leaving = false;
    int lineage = 0;
    bool is_orphan = false;  // its launcher is gone, or the others went on without its node
    int committed = 0;
  };
  struct World {
    int size = 0;
    int slots = 0;
    std::map<int, int> members;  // workers by rank
    bool has_met = false;
    std::map<int, std::set<int>> contributions;  // slots whose samples are in, by step
    std::set<int> at_end;
  };

  bool is_in(int worker, WorldKey world) const;
  void find_highest();
  void meet(WorldKey key);
  void take_state(int worker, WorldKey key, int step);
  void contribute(int worker, WorldKey key);
  void commit(int worker, WorldKey key, int step);
  void reach_end(int worker, WorldKey key);
  void soon(int worker, WorldKey key, Time low, Time high, std::function<void()> action);

  EventQueue& queue_;
  Random& random_;
  Callbacks callbacks_;
  Length length_;
  std::map<int, Worker> workers_;
  std::map<WorldKey, World> worlds_;
  bool highest_is_old_ = false;  // someone died since
  int highest_ = 0;  // step that anybody who lives has committed, since all were started anew
  int lineage_ = 0;  // how often all were; who was cut off may still live in an older one
  std::set<int> doomed_;
  bool ends_ = false;
  int recoveries_ = 0;
};

}  // namespace lockstep::sim
