#include <algorithm>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "ddp/engine.h"

// Models that differ between ranks train wrongly or hang; this finds out before the first step.
namespace lockstep {
namespace {

std::string describe(const std::string& kind, const std::string& name, const at::Tensor& tensor) {
  std::string text = concat(kind, " ", name, " ", tensor.sizes(), " ", tensor.scalar_type());
  if (!tensor.is_sparse() && !tensor.is_contiguous()) text += concat(" strides ", tensor.strides());
  return text;
}

}  // namespace

bool DataParallelEngine::Impl::all_ranks_are_lockstep() const {
  return std::ranges::all_of(group->global_ranks,
                             [&](int rank) { return group->peers->knows(rank); });
}

// A line for everything that must be the same on every rank.
std::vector<std::string> DataParallelEngine::Impl::description() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    lines.push_back(describe("parameter", names[i], parameters[i]) + (sparse[i] ? " sparse" : ""));
  }
  if (module) {
    for (const auto& walked : walk_parameters(*module, ignored)) {
      if (!walked.tensor.requires_grad()) {
        lines.push_back(describe("frozen parameter", walked.name, walked.tensor));
      }
    }
    for (const auto& walked : walk_buffers(*module, ignored)) {
      lines.push_back(describe("buffer", walked.name, walked.tensor));
    }
  }
  lines.push_back(concat("option reduction ", static_cast<int>(reduction)));
  lines.push_back(concat("option find_unused_parameters ", options.find_unused_parameters));
  lines.push_back(concat("option static_graph ", options.static_graph));
  lines.push_back(concat("option broadcast_buffers ", options.broadcast_buffers));
  lines.push_back(concat("option bucket_cap_mb ", options.bucket_cap_mb.value_or(0), " ",
                         nlohmann::json(options.bucket_cap_mb_list).dump()));
  return lines;
}

// A rank of another language takes part in PyTorch's own check, which names counts and shapes.
// Among themselves, lockstep ranks compare a hash and, if it differs, tell the first difference.
void DataParallelEngine::Impl::verify_across_ranks() {
  if (!all_ranks_are_lockstep()) {
    c10d::verify_params_across_processes(group->group, parameters, std::nullopt);
    return;
  }
  const nlohmann::json own = description();
  const auto hash = std::to_string(std::hash<std::string>{}(own.dump()));
  const auto hashes = handle.all_gather_string(hash);
  if (std::ranges::all_of(hashes, [&](const auto& each) { return each == hashes[0]; })) return;

  const auto all = handle.all_gather_json(own);
  const auto line = [](const nlohmann::json& list, std::size_t i) {
    return i < list.size() ? list[i].get<std::string>() : std::string("nothing");
  };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < std::max(all[0].size(), all[rank].size()); ++i) {
      if (line(all[0], i) == line(all[rank], i)) continue;
      throw InvalidArgument(concat("DistributedDataParallel: the ranks differ: ", line(all[0], i),
                                   " on rank ", group->global_ranks[0], " and ", line(all[rank], i),
                                   " on rank ", group->global_ranks[rank]));
    }
  }
}

}  // namespace lockstep
