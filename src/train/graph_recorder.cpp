#include "train/graph_recorder.h"

#include <cstdlib>
#include <set>

#include "lockstep/error.h"
#include "train/cuda_graph_recorder.h"

namespace lockstep {
namespace {

class Rehearsal : public GraphRecorder {
 public:
  void on_stream(const PartOfStep& work) override { work(); }
  void warm_up(const PartOfStep& work) override { work(); }
  void begin_recording() override {}
  void record(const std::string& part, const PartOfStep& work) override {
    LOCKSTEP_CHECK(!has(part), "a part of a step is recorded twice");
    work();
    parts_.insert(part);
    ++rehearsed_parts().recorded;
  }
  bool has(const std::string& part) const override { return parts_.contains(part); }
  void begin_replays() override {}
  void replay(const std::string&, const PartOfStep& work) override {
    work();
    ++rehearsed_parts().replayed;
  }
  bool await(std::chrono::nanoseconds) override { return !rehearsed_parts().hang; }
  void forget() override { parts_.clear(); }

 private:
  std::set<std::string> parts_;
};

}  // namespace

RehearsedParts& rehearsed_parts() {
  static RehearsedParts parts;
  return parts;
}

std::unique_ptr<GraphRecorder> make_graph_recorder(c10::Device device) {
  if (device.is_cuda()) return make_cuda_graph_recorder();
  if (std::getenv("LOCKSTEP_REHEARSE_GRAPHS") != nullptr) return std::make_unique<Rehearsal>();
  throw InvalidArgument(
      concat("CUDA graphs need a GPU, and this process computes on ", device.str()));
}

}  // namespace lockstep
