#include <algorithm>
#include <cstring>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include "comm/group_impl.h"
#include "core/rank_list.h"
#include "lockstep/error.h"
#include "lockstep/process_group.h"

// Strings and JSON travel as bytes in tensors; a length goes first.
namespace lockstep {
namespace {

at::Tensor length_tensor(const GroupImpl& group, std::size_t value) {
  return at::full({1}, static_cast<std::int64_t>(value), at::kLong).to(group.small_device());
}

at::Tensor bytes_tensor(const GroupImpl& group, std::int64_t length, const std::string& text) {
  at::Tensor bytes = at::zeros({length}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes.to(group.small_device());
}

std::string text_of(const at::Tensor& bytes, std::int64_t length) {
  const at::Tensor here = bytes.cpu();
  return {static_cast<const char*>(here.const_data_ptr()), static_cast<std::size_t>(length)};
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
  const GroupImpl& group = get("broadcast_string");
  const at::Tensor length = length_tensor(group, value.size());
  broadcast(length, {.root = root});
  const auto size = length.item<std::int64_t>();
  if (size == 0) return "";
  const at::Tensor bytes = bytes_tensor(group, size, group.rank == root ? value : "");
  broadcast(bytes, {.root = root});
  return text_of(bytes, size);
}

std::vector<std::string> ProcessGroup::all_gather_string(const std::string& value) {
  const GroupImpl& group = get("all_gather_string");
  std::vector<at::Tensor> lengths(group.size()), gathered(group.size());
  for (auto& each : lengths) each = length_tensor(group, 0);
  all_gather(lengths, length_tensor(group, value.size()));

  std::int64_t longest = 1;  // backends do not like empty tensors
  for (const auto& each : lengths) longest = std::max(longest, each.item<std::int64_t>());
  for (auto& each : gathered) each = bytes_tensor(group, longest, "");
  all_gather(gathered, bytes_tensor(group, longest, value));

  std::vector<std::string> values;
  for (std::size_t i = 0; i < gathered.size(); ++i) {
    values.push_back(text_of(gathered[i], lengths[i].item<std::int64_t>()));
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
  GroupImpl& group = get("monitored_barrier");
  const auto timeout = options.timeout.count() > 0 ? options.timeout : group.timeout;
  const std::int64_t sequence = group.store_sequence++;
  const std::string base = concat("monitored_barrier/", sequence, "/");
  const auto key_of = [&](int rank) { return concat(base, rank); };
  const auto missing = [&] {
    std::vector<int> ranks;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (!group.store->check({key_of(rank)})) ranks.push_back(group.global_ranks[rank]);
    }
    return ranks;
  };

  const GroupGuard::Waiting waiting(*group.guard, "monitored_barrier");
  std::vector<int> absent;
  try {
    group.store->set(key_of(group.rank), std::string("1"));
    // Everybody has read the verdict of the barrier before the last one.
    group.store->deleteKey(concat("monitored_barrier/", sequence - 2, "/", group.rank));
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
    throw PeerLost(concat("rank ", group.global_ranks[group.rank],
                          ": monitored_barrier: the store is gone: ", first_line(text)),
                   {.rank = group.global_ranks[group.rank],
                    .peers = group.peers->find_dead(group.global_ranks),
                    .operation = "monitored_barrier"});
  }
  if (absent.empty()) return;
  throw Timeout(
      concat("rank ", group.global_ranks[group.rank], ": monitored_barrier: ", list_ranks(absent),
             " did not arrive within ", std::chrono::duration<double>(timeout).count(), " s"),
      absent);
}

}  // namespace lockstep
