#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/store_map.h"
#include "control/store_request.h"
#include "control/store_waits.h"

namespace lockstep {

/// Bytes to send to a client.
struct StoreReply {
  StoreClientId client = 0;
  std::string bytes;
};

/// What became of a request. Replies to other clients are there when it let them go on.
struct StoreOutcome {
  std::vector<StoreReply> replies;
  std::string problem;  // not empty: close the connection of the one who asked, for this reason
};

struct StoreDataLimits {
  std::size_t bytes = std::size_t{1} << 30;        // of all keys, values, queues and waits
  std::size_t reply_bytes = std::size_t{1} << 28;  // of one reply
};

/// The keys, values, queues and waiting clients of a store: what torch's TCPStore server does,
/// without sockets, threads and clocks.
///
/// It answers as torch's libuv server does, except where that one is wrong: a COMPARE_SET that
/// wrote nothing wakes nobody; a push wakes nobody who no longer waits for that queue; MULTI_SET
/// happens at once; a WAIT takes the place of an unfinished one of the same client. Not
/// thread-safe.
class StoreData {
 public:
  explicit StoreData(StoreDataLimits limits = {}) : limits_(limits) {}

  /// Carries out a request. Ids are the caller's; an unknown one is a new client.
  StoreOutcome execute(StoreClientId client, const StoreRequest& request);

  /// The client is gone and waits for nothing.
  void remove_client(StoreClientId client) { waits_.stop(client); }

  /// Keys that the client waits for and that have not come, in the order it named them; the first
  /// `limit` of them.
  std::vector<std::string> awaited_keys(StoreClientId client, std::size_t limit = -1) const {
    return waits_.awaited_keys(client, limit);
  }

  void for_each_key(const std::function<void(const std::string&)>& visit) const;

  std::size_t number_of_keys() const { return values_.size(); }

  /// What the limit on bytes is held against; containers are counted with an allowance per entry.
  std::size_t bytes() const { return bytes_ + waits_.bytes(); }

 private:
  bool has_room_for(const StoreRequest& request) const;
  void execute_on_key(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);
  void execute_on_list(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);
  void execute_on_queue(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);

  void put(std::string_view key, std::string_view value, StoreOutcome& outcome);
  void append(std::string_view key, std::string_view value, StoreOutcome& outcome);
  void compare_set(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);
  void add(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);
  void barrier(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);
  void erase(StoreClientId client, std::string_view key, StoreOutcome& outcome);
  void get_all(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome) const;
  void list_keys(StoreClientId client, StoreOutcome& outcome) const;

  void wait_for_all(StoreClientId client, const StoreRequest& request, StoreOutcome& outcome);
  void wake_all(std::string_view key, StoreOutcome& outcome);

  const std::string* find(std::string_view key) const;
  bool present(std::string_view key) const;
  std::string* entry(std::string_view key);
  std::optional<std::int64_t> number_at(std::string_view key) const;

  StoreDataLimits limits_;
  StoreMap<std::string> values_;
  StoreMap<std::deque<std::string>> queues_;  // none of them empty
  StoreWaits waits_;
  std::size_t bytes_ = 0;  // of values_ and queues_
};

}  // namespace lockstep
