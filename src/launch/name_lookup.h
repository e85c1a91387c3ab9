#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launch/event_loop.h"
#include "launch/ip_address.h"

namespace lockstep {

/// Looks up a host without making a loop wait: DNS may take half a minute. A numeric address takes
/// no thread.
///
/// Destroying it forgets the question; the thread ends by itself, whenever the resolver returns.
class NameLookup {
 public:
  /// `reason` is the resolver's, where no address was found.
  using Found = std::function<void(std::vector<IpAddress>, const std::string& reason)>;

  /// Calls `found` once, from the loop, which must outlive this object. It may destroy it.
  NameLookup(EventLoop& loop, const std::string& host, Found found);
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

 private:
  struct Answer;
  void on_answer();

  EventLoop& loop_;
  std::shared_ptr<Found> found_;
  std::shared_ptr<Answer> answer_;  // shared with the thread
  EventLoop::TimerId at_once_{};
};

}  // namespace lockstep
