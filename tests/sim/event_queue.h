#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "launch/messages.h"

namespace lockstep::sim {

/// What will happen, in the order of virtual time; what happens at one time, in the order in which
/// it was asked for.
class EventQueue {
 public:
  Time now() const { return now_; }
  bool empty() const { return events_.empty(); }

  void at(Time when, std::function<void()> action) {
    events_.push({std::max(when, now_), next_number_++, std::move(action)});
  }
  void after(Time delay, std::function<void()> action) { at(now_ + delay, std::move(action)); }

  void run_next() {
    Event event = std::move(const_cast<Event&>(events_.top()));  // its place in the queue stays
    events_.pop();
    now_ = event.when;
    event.action();
  }

 private:
  struct Event {
    Time when;
    std::uint64_t number;
    std::function<void()> action;

    bool operator<(const Event& other) const {  // the queue's top is its largest
      return std::pair(when, number) > std::pair(other.when, other.number);
    }
  };

  Time now_{0};
  std::uint64_t next_number_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace lockstep::sim
