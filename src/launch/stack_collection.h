#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "launch/coordinator.h"
#include "launch/event_loop.h"

namespace lockstep {

/// At the coordinator: asks all nodes of a job where their ranks stand, because one of them wants
/// to know, and passes the answers on to it as they come. The loop must outlive it.
class StackCollection {
 public:
  using Send = std::function<void(LinkId link, const Message& message)>;

  StackCollection(EventLoop& loop, Send send);
  ~StackCollection();
  StackCollection(const StackCollection&) = delete;
  StackCollection& operator=(const StackCollection&) = delete;

  /// `hosts` are the nodes that are here now.
  void ask(LinkId asker, const AskStacks& ask, const std::map<LinkId, std::string>& hosts);
  void on_found(LinkId from, const FoundStacks& found);
  void on_closed(LinkId link);

 private:
  struct Round {
    LinkId asker;
    std::uint64_t asked_as;                 // the asker's number of it
    std::map<LinkId, std::string> awaited;  // nodes that have not answered
    std::vector<std::string> gone;          // nodes that will not
    EventLoop::TimerId limit;
  };

  void finish(std::uint64_t id);
  void finish_if_complete(std::uint64_t id);

  EventLoop& loop_;
  Send send_;
  std::map<std::uint64_t, Round> rounds_;
  std::uint64_t last_id_ = 0;
};

}  // namespace lockstep
