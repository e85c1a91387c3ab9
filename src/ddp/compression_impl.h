#pragma once

#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/compression.h"
#include "lockstep/process_group.h"

namespace lockstep {

/// Elements that share a scale when gradients travel as int8.
inline constexpr std::int64_t kInt8Block = 512;

/// What a compression needs of the other ranks. Calls return when they have the result.
struct CompressionLink {
  std::function<void(const at::Tensor&)> mean;  // in place
  ProcessGroup group;
};

/// One parameter's gradient in a bucket: a contiguous view of the bucket's buffer.
struct CompressedPiece {
  std::size_t index = 0;  // of the parameter
  at::Tensor gradient;
};

/// What a GradientCompression remembers. power_sgd.cpp and int8_compression.cpp have the two ways.
struct GradientCompression::Impl {
  struct Entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t offset = 0;  // in a row of the error memory
    std::int64_t numel = 0;
    std::int64_t first_block = 0;  // blocks are counted over all parameters
  };

  CompressionOptions options;
  bool error_feedback = false;
  std::vector<Entry> entries;
  std::unordered_map<const void*, std::size_t> by_tensor;
  std::int64_t numel = 0;
  c10::Device device = c10::Device(c10::kCPU);
  c10::ScalarType error_type = c10::ScalarType::Float;

  Place place;
  bool transactional = false;

  // Committed, and as the backward under way would have it. The error memory has a row for each
  // slot if it is mirrored, and otherwise one.
  at::Tensor errors, next_errors;
  std::map<std::string, at::Tensor> qs, next_qs;
  std::int64_t iteration = 0;
  std::vector<bool> touched;  // parameters whose error is in next_errors
  bool last_bucket_seen = false;
  Statistics statistics;

  void make_errors();
  std::int64_t row() const { return place.mirrored ? place.slot : 0; }
  at::Tensor error_of(std::size_t index) const;
  /// To be added to the next gradient.
  void remember_error(std::size_t index, const at::Tensor& error);
  void complete_next_errors();

  /// Leaves the mean over all ranks, or something close to it, in every piece.
  void reduce(const at::Tensor& buffer, const std::vector<CompressedPiece>& pieces, bool last,
              const CompressionLink& link);
  void reduce_int8(const std::vector<CompressedPiece>& pieces, const CompressionLink& link);
  void reduce_power_sgd(const PowerSGDOptions& wanted, const std::vector<CompressedPiece>& pieces,
                        const CompressionLink& link);
};

/// The options as a text that two runs can be compared by.
std::string describe_compression(const CompressionOptions& options);

}  // namespace lockstep
