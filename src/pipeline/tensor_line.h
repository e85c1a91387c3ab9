#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "lockstep/model_part.h"
#include "lockstep/process_group.h"

namespace lockstep {

/// Tags of a pipeline's group that belong to it.
enum class LineTag : int {
  activations = (1 << 30) - 16,
  gradients,
  evaluation,
  ties,
};

/// What one stage hands to another for a micro-batch. Tensors may be undefined: gradients of what
/// was not used.
struct Parcel {
  Tensors tensors;
  std::int64_t micro_batch = 0;
  std::int64_t rows = 0;  // of the micro-batch as the first stage cut it
};

/// Numbers that say what the tensors of a parcel are like: type, shape, memory layout, and whether
/// a gradient is wanted back.
using Description = std::vector<std::int64_t>;

/// The sending end. An envelope of a few numbers goes before each parcel; the description goes with
/// it only the first time that tensors are like this. Nothing waits: what is sent is kept until it
/// has left.
class TensorSender {
 public:
  struct End {
    ProcessGroup group;
    int peer = 0;
    LineTag tag = LineTag::activations;
  };
  explicit TensorSender(End end) : end_(std::move(end)) {}

  void send(const Parcel& parcel);
  /// Forgets what has left of micro-batches below this one; waits for it.
  void finish_before(std::int64_t micro_batch);
  /// Waits until everything has left.
  void finish();

  std::int64_t descriptions_sent() const { return descriptions_sent_; }

 private:
  void post(const at::Tensor& tensor, std::int64_t micro_batch);

  struct Leaving {
    Work work;
    at::Tensor tensor;
    std::int64_t micro_batch = 0;
  };
  End end_;
  std::map<Description, std::int64_t> known_;
  std::int64_t descriptions_sent_ = 0;
  std::deque<Leaving> leaving_;
};

/// The receiving end.
class TensorReceiver {
 public:
  struct End {
    ProcessGroup group;
    int peer = 0;
    LineTag tag = LineTag::activations;
    c10::Device device{c10::DeviceType::CPU};
    std::string who;  // for messages: "stage 1, from stage 0"
  };
  explicit TensorReceiver(End end) : end_(std::move(end)) {}

  /// So many parcels will come.
  void expect(int parcels);
  /// Begins to receive what has been announced, without waiting for it.
  void poll();
  /// The next parcel; waits for it. Tensors that want a gradient are leaves that require one.
  Parcel receive();

 private:
  struct Arriving {
    Description description;
    std::vector<Work> works;
    Parcel parcel;
  };
  void open();
  void read_envelope();

  End end_;
  std::vector<Description> known_;
  int expected_ = 0;  // envelopes that have not been asked for
  at::Tensor envelope_;
  Work envelope_work_;
  bool open_ = false;  // an envelope is on its way
  std::deque<Arriving> arriving_;
};

}  // namespace lockstep
