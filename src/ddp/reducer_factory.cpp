#include "ddp/reducer_factory.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <unordered_map>

namespace lockstep {
namespace {

constexpr double kBytesPerMiB = 1024.0 * 1024.0;

struct BucketCaps {
  std::int64_t cap = c10d::kDefaultBucketBytesCap;
  std::int64_t first = c10d::kDefaultFirstBucketBytes;
  std::vector<std::int64_t> list;  // one for each bucket, where the user gave that
};

std::int64_t to_bytes(double mebibytes, const char* option) {
  if (!(mebibytes > 0) || mebibytes > 1e9) {
    throw InvalidArgument(
        concat(option, " is ", mebibytes, "; it must be a positive number of MiB"));
  }
  return static_cast<std::int64_t>(mebibytes * kBytesPerMiB);
}

BucketCaps bucket_caps(const DistributedDataParallelOptions& options) {
  BucketCaps caps;
  if (!options.bucket_cap_mb_list.empty()) {
    if (options.bucket_cap_mb) {
      throw InvalidArgument("bucket_cap_mb and bucket_cap_mb_list exclude each other");
    }
    for (double each : options.bucket_cap_mb_list) {
      caps.list.push_back(to_bytes(each, "bucket_cap_mb_list"));
    }
    caps.cap = caps.first = *std::ranges::max_element(caps.list);
  } else if (options.bucket_cap_mb) {
    // A cap that was asked for counts for the first bucket as well.
    caps.cap = caps.first = to_bytes(*options.bucket_cap_mb, "bucket_cap_mb");
  }
  return caps;
}

// Until the first backward has shown in which order gradients arrive, everything is one bucket;
// unless parameters may be unused, because then the buckets are never rebuilt.
std::vector<std::size_t> initial_limits(const BucketCaps& caps,
                                        const DistributedDataParallelOptions& options) {
  if (!caps.list.empty()) return {caps.list.begin(), caps.list.end()};
  if (options.static_graph || !options.find_unused_parameters) {
    return {static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())};
  }
  if (caps.first < caps.cap) {
    return {static_cast<std::size_t>(caps.first), static_cast<std::size_t>(caps.cap)};
  }
  return {static_cast<std::size_t>(caps.cap)};
}

// A template, so that the constructor which this release does not have is not compiled.
template <typename Reducer, typename... Common>
std::shared_ptr<Reducer> construct(const std::vector<std::int64_t>& cap_list, Common... common) {
  if constexpr (std::is_constructible_v<Reducer, Common..., bool, bool,
                                        std::vector<std::int64_t>>) {
    return std::make_shared<Reducer>(common..., /*skip_all_reduce_unused_params=*/false,
                                     /*use_python_reducer=*/false, cap_list);
  } else {
    if (!cap_list.empty()) {
      throw InvalidArgument("bucket_cap_mb_list needs torch 2.13; use bucket_cap_mb");
    }
    return std::make_shared<Reducer>(common..., /*skip_all_reduce_unused_params=*/false,
                                     /*use_python_reducer=*/false);
  }
}

}  // namespace

std::shared_ptr<c10d::Reducer> make_reducer(const ReducerSpec& spec) {
  const BucketCaps caps = bucket_caps(spec.options);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      spec.parameters, initial_limits(caps, spec.options), spec.sparse_gradients);
  // Gradients arrive roughly in the reverse order of registration.
  std::ranges::reverse(buckets);

  std::unordered_map<std::size_t, std::string> names;
  for (std::size_t i = 0; i < spec.names.size(); ++i) names[i] = spec.names[i];
  return construct<c10d::Reducer>(
      caps.list, spec.parameters, buckets, spec.group, spec.sparse_gradients, caps.cap,
      spec.options.find_unused_parameters, spec.options.gradient_as_bucket_view, names, caps.first);
}

}  // namespace lockstep
