#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep {

/// Decides which samples of a dataset are read in an epoch, and in what order.
///
/// The order is a pure function of the sampler's options and the epoch, never of what the process
/// did before: asked twice it gives the same answer, and a restarted process finds its place again.
///
/// Not thread-safe. The loader that owns a sampler calls it from one thread.
class Sampler {
 public:
  virtual ~Sampler() = default;

  /// Samples per epoch.
  virtual std::int64_t size() const = 0;

  /// The dataset indices of the current epoch, in reading order.
  virtual std::vector<std::int64_t> indices() const = 0;

  /// Call before each epoch; otherwise all epochs share one order. A sampler that wraps another one
  /// passes it on.
  virtual void set_epoch(std::int64_t epoch) { epoch_ = epoch; }

  std::int64_t epoch() const { return epoch_; }

 protected:
  Sampler() = default;
  Sampler(const Sampler&) = default;
  Sampler& operator=(const Sampler&) = default;

 private:
  std::int64_t epoch_ = 0;
};

/// 0, 1, 2, ... in every epoch.
class SequentialSampler : public Sampler {
 public:
  /// Throws InvalidArgument for a negative size.
  explicit SequentialSampler(std::int64_t dataset_size);

  std::int64_t size() const override { return dataset_size_; }
  std::vector<std::int64_t> indices() const override;

 private:
  std::int64_t dataset_size_;
};

struct RandomSamplerOptions {
  std::int64_t dataset_size = 0;
  std::uint64_t seed = 0;
  bool replacement = false;  // true: every draw is from the whole dataset, so samples may repeat
  std::optional<std::int64_t> num_samples = std::nullopt;  // unset: dataset_size
};

/// A random order of the whole dataset.
///
/// Python's RandomSampler takes its seed from the global generator, so its order depends on
/// everything drawn before. Here epoch e is what Python gives with
/// `generator=torch.Generator().manual_seed(seed + e)`, index for index.
class RandomSampler : public Sampler {
 public:
  /// Throws InvalidArgument when there is nothing to draw (an empty dataset, num_samples below 1).
  explicit RandomSampler(const RandomSamplerOptions& options);

  std::int64_t size() const override;
  std::vector<std::int64_t> indices() const override;

 private:
  RandomSamplerOptions options_;
};

struct SubsetSamplerOptions {
  bool shuffle = false;
  std::uint64_t seed = 0;  // read only with shuffle
};

/// Only the samples given: in the order given, or, with `shuffle`, in that of Python's
/// SubsetRandomSampler with `generator=torch.Generator().manual_seed(seed + epoch)`.
class SubsetSampler : public Sampler {
 public:
  /// Throws InvalidArgument for a negative index.
  explicit SubsetSampler(std::vector<std::int64_t> subset,
                         const SubsetSamplerOptions& options = {});

  std::int64_t size() const override;
  std::vector<std::int64_t> indices() const override;

 private:
  std::vector<std::int64_t> subset_;
  SubsetSamplerOptions options_;
};

}  // namespace lockstep
