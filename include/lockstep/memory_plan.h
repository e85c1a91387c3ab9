#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// A model in numbers, for predict_memory(). Parameters are counted in elements, all else in bytes.
struct ModelSizes {
  /// The parameters of each unit (lockstep/unit.h) in the order of forward.
  std::vector<std::vector<std::int64_t>> units = {};
  /// Those that are in no unit.
  std::vector<std::int64_t> root = {};
  std::int64_t buffer_bytes = 0;

  /// What forward keeps of one sample for backward: in each unit; of each unit where that is
  /// computed again (its input); outside of units.
  std::int64_t unit_sample_bytes = 0;
  std::int64_t unit_input_sample_bytes = 0;
  std::int64_t root_sample_bytes = 0;
  /// What the backward of a unit needs for a moment, of one sample.
  std::int64_t work_sample_bytes = 0;
  /// Independent of samples: from forward to the end of backward; and for a moment at its end.
  std::int64_t held_bytes = 0;
  std::int64_t last_bytes = 0;
};

/// How a model is trained.
struct MemoryPlan {
  int stage = 0;  // that of ShardStage; 0: DistributedDataParallel
  int ranks = 1;
  int replicas = 1;          // that of ShardedOptions, where the stage is not 0
  bool peer_copies = false;  // likewise
  std::int64_t micro_batch = 1;
  bool activation_checkpointing = false;
  int part_bytes = 4;       // of an element of what the optimizer changes
  int gather_bytes = 4;     // of whole parameters, where the stage is not 0
  int reduce_bytes = 4;     // of gradients on their way, likewise
  int optimizer_bytes = 8;  // of the optimizer's state for an element: AdamW's two floats
  int prefetch = 1;
  bool reshard_after_forward = true;
  bool gradient_as_bucket_view = true;  // stage 0: whether gradients and buckets are the same
  /// Means are added by the ranks themselves (Gloo), which takes a second buffer for each.
  bool adds_on_receipt = false;
};

/// Bytes of one rank.
struct MemoryByKind {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t activations = 0;
  std::int64_t buffers = 0;
  /// The most that there is at once. Less than the sum: gradients come while activations go.
  std::int64_t peak = 0;
};

/// The most that a rank has of each kind in any step but the first, and of all together.
/// Parameters and gradients of stages 1 to 3 are what ShardedMemory counts, to the byte. Throws
/// InvalidArgument for a stage that there is not, no ranks, replicas that do not divide them, or
/// copies at a neighbour where there is none, or with replicas.
MemoryByKind predict_memory(const ModelSizes& model, const MemoryPlan& plan);

/// The first stage, from `plan.stage` on, and in it the largest micro-batch whose peak is at most
/// `limit_bytes`. Nothing where a single sample does not fit in any.
std::optional<MemoryPlan> fit_memory(const ModelSizes& model, const MemoryPlan& plan,
                                     std::int64_t limit_bytes);

struct MemoryRow {
  std::string name;
  MemoryByKind memory;
};
/// A line for each row under a line of headings, for people.
std::string memory_table(const std::vector<MemoryRow>& rows);

/// "24GiB", "512MB", "1.5 GiB" or a number of bytes. Throws InvalidArgument.
std::int64_t parse_bytes(const std::string& text);

/// As in "1.50 GiB".
std::string show_bytes(std::int64_t bytes);

}  // namespace lockstep
