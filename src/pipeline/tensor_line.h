#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
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
///
/// The receiver begins to receive before it needs the tensors: it takes those of a micro-batch to
/// be like those of the same micro-batch before. Where they are not, the sender first sends bytes
/// without meaning in their place.
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
  void post_payload(const Tensors& tensors, std::int64_t micro_batch);

  struct Leaving {
    Work work;
    at::Tensor tensor;
    std::int64_t micro_batch = 0;
  };
  End end_;
  std::map<std::int64_t, Description> last_;  // by micro-batch: what the receiver counts on
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

  /// So many parcels will come, for micro-batches 0, 1, ... in this order.
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
  Arriving begin_to_receive(const Description& description);
  Description receive_description(std::int64_t number, std::int64_t length);
  void check_description(const Description& description, std::int64_t micro_batch) const;

  End end_;
  std::vector<Description> known_;
  std::map<std::int64_t, Description> last_;  // by micro-batch
  int expected_ = 0;                          // envelopes that have not been asked for
  std::int64_t next_ = 0;                     // the micro-batch of the next one
  at::Tensor envelope_;
  Work envelope_work_;
  std::optional<Arriving> counted_on_;  // what is taken to follow the envelope
  bool open_ = false;                   // an envelope is on its way
  std::deque<Arriving> arriving_;
};

}  // namespace lockstep
