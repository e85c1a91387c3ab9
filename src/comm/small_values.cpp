#include <algorithm>
#include <cstring>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "comm/arrival.h"
#include "comm/group_impl.h"
#include "lockstep/error.h"
#include "lockstep/process_group.h"

// Strings and JSON travel as bytes in tensors; a length goes first.
namespace lockstep {
namespace {

at::Tensor lengths_tensor(std::int64_t count) {
  return at::empty({count}, at::kLong);
}

at::Tensor bytes_tensor(std::int64_t length) {
  return at::empty({length}, at::kByte);
}

void copy_in(const std::string& text, const at::Tensor& bytes) {
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
}

std::string copy_out(const at::Tensor& bytes, std::int64_t length) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

nlohmann::json parse(const std::string& text) {
  return nlohmann::json::parse(text);
}

std::vector<nlohmann::json> parse_all(const std::vector<std::string>& texts) {
  std::vector<nlohmann::json> values;
  std::ranges::transform(texts, std::back_inserter(values), parse);
  return values;
}

}  // namespace

std::string ProcessGroup::broadcast_string(const std::string& value, int root) {
  at::Tensor length = lengths_tensor(1);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(value.size());
  broadcast(length, {.root = root});
  const std::int64_t size = *length.const_data_ptr<std::int64_t>();
  if (size == 0) return "";
  at::Tensor bytes = bytes_tensor(size);
  if (rank() == root) copy_in(value, bytes);
  broadcast(bytes, {.root = root});
  return copy_out(bytes, size);
}

std::vector<std::string> ProcessGroup::all_gather_string(const std::string& value) {
  at::Tensor length = lengths_tensor(1);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(value.size());
  std::vector<at::Tensor> lengths;
  for (int i = 0; i < size(); ++i) lengths.push_back(lengths_tensor(1));
  all_gather(lengths, length);

  std::int64_t longest = 1;  // backends do not like empty tensors
  for (const auto& each : lengths)
    longest = std::max(longest, *each.const_data_ptr<std::int64_t>());
  at::Tensor bytes = bytes_tensor(longest);
  copy_in(value, bytes);
  std::vector<at::Tensor> gathered;
  for (int i = 0; i < size(); ++i) gathered.push_back(bytes_tensor(longest));
  all_gather(gathered, bytes);

  std::vector<std::string> values;
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    values.push_back(copy_out(gathered[i], *lengths[i].const_data_ptr<std::int64_t>()));
  }
  return values;
}

std::vector<std::string> ProcessGroup::gather_string(const std::string& value, int root) {
  if (root < 0 || root >= size()) {
    throw InvalidArgument(
        concat("gather_string: root ", root, " is outside the group's ranks [0, ", size(), ")"));
  }
  auto values = all_gather_string(value);
  if (rank() != root) values.clear();
  return values;
}

nlohmann::json ProcessGroup::broadcast_json(const nlohmann::json& value, int root) {
  return parse(broadcast_string(rank() == root ? value.dump() : "", root));
}

std::vector<nlohmann::json> ProcessGroup::all_gather_json(const nlohmann::json& value) {
  return parse_all(all_gather_string(value.dump()));
}

std::vector<nlohmann::json> ProcessGroup::gather_json(const nlohmann::json& value, int root) {
  return parse_all(gather_string(value.dump(), root));
}

void ProcessGroup::monitored_barrier(const MonitoredBarrierOptions& options) {
  GroupImpl& group = get();
  const auto timeout = options.timeout.count() > 0 ? options.timeout : group.timeout;
  const std::string base = concat("monitored_barrier/", group.store_sequence++, "/");
  const auto key_of = [&](int rank) { return concat(base, rank); };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (!group.store->check({key_of(rank)})) ranks.push_back(group.global_ranks[rank]);
    }
    return ranks;
  };

  std::vector<int> absent;
  try {
    group.store->set(key_of(group.rank), std::string("1"));
    if (group.rank == 0) {
      // One rank collects, so that the store answers as many requests as there are ranks, not as
      // many as there are pairs.
      std::vector<std::string> keys;
      for (int rank = 0; rank < group.size(); ++rank) keys.push_back(key_of(rank));
      try {
        group.store->wait(keys, timeout);
      } catch (const std::exception&) {
        absent = missing();
      }
      group.store->set(base + "done", nlohmann::json(absent).dump());
    } else {
      try {
        // Rank 0's verdict comes a moment after its own time-out, which began with its arrival.
        group.store->wait({base + "done"}, timeout + std::chrono::seconds(1));
        absent = parse(group.store->get_to_str(base + "done")).get<std::vector<int>>();
      } catch (const std::exception&) {
        absent = missing();
      }
    }
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw PeerLost(
        concat("rank ", group.global_ranks[group.rank],
               ": monitored_barrier: the store is gone: ", text.substr(0, text.find('\n'))),
        {.rank = group.global_ranks[group.rank],
         .peers = group.peers->find_dead(),
         .operation = "monitored_barrier"});
  }
  if (absent.empty()) return;
  throw Timeout(
      concat("rank ", group.global_ranks[group.rank], ": monitored_barrier: ", list_ranks(absent),
             " did not arrive within ", std::chrono::duration<double>(timeout).count(), " s"),
      absent);
}

}  // namespace lockstep
