#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/tensor_walk.h"
#include "lockstep/trainer_options.h"
#include "lockstep/training_task.h"
#include "lockstep/world.h"

namespace lockstep {

namespace detail {

template <typename M>
std::shared_ptr<M> module_pointer(const std::shared_ptr<M>& module) {
  return module;
}
template <typename Holder>
requires requires(const Holder& holder) {
  holder.ptr();
}
auto module_pointer(const Holder& holder) {
  return holder.ptr();
}

// Batches may have been loaded on the CPU.
template <typename Batch>
void move_to(Batch& batch, c10::Device device) {
  auto move = [device](at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() != device) {
      tensor = tensor.to(device, tensor.scalar_type(), /*non_blocking=*/true);
    }
  };
  walk_tensors<false>(batch, move);
}

/// What tells the tensors of one batch from those of another before their values do.
struct TensorForm {
  std::vector<std::int64_t> sizes, strides;  // empty where there is no tensor
  std::optional<c10::Device> device;
  c10::ScalarType type = c10::ScalarType::Undefined;
  bool operator==(const TensorForm&) const = default;
};

/// Batches as what was recorded reads them: with tensors that stay where they are, whose values are
/// those of the batch that is held.
class HeldTensors {
 public:
  using Places = std::vector<at::Tensor*>;
  using Forms = std::vector<TensorForm>;

  /// Throws InvalidArgument for tensors that are not strided.
  static Forms forms_of(const Places& batch);

  /// Whether the first batch had these, or is yet to come.
  bool are_of(const Forms& forms) const { return tensors_.empty() || forms_ == forms; }
  /// Copies the values. Throws InvalidArgument where no tensors were found.
  void take(const Places& batch);
  /// Gives a batch these tensors for its own, or those back which it had.
  void exchange(const Places& batch);
  void release() { *this = {}; }

 private:
  Forms forms_;  // of the first batch; a copy may lie in memory otherwise
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> originals_;  // while they are exchanged
};

// Not copies of them.
template <typename Batch>
HeldTensors::Places places_of_tensors(Batch& batch) {
  HeldTensors::Places places;
  auto add = [&places](at::Tensor& tensor) { places.push_back(&tensor); };
  walk_tensors<false>(batch, add);
  return places;
}

inline MetricSums as_metrics(MetricSums sums, double) {
  return sums;
}
inline MetricSums as_metrics(LossSum loss, double) {
  MetricSums sums = std::move(loss.metrics);
  const double count = loss.counted.defined() ? loss.counted.item<double>() : loss.count;
  sums["loss"] = {.sum = std::move(loss.sum), .count = count};
  return sums;
}
inline MetricSums as_metrics(const at::Tensor& mean, double samples) {
  return {{"loss", {.sum = mean.mul(samples), .count = samples}}};
}

template <typename M, typename Data, typename Loss>
class TypedTask : public TrainingTask {
 public:
  using View = ModelView<M>;
  using Result = std::invoke_result_t<Loss&, View&, typename Data::Batch&>;
  static_assert(std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, LossSum>,
                "a loss function returns an at::Tensor, the mean over the batch's samples, or a "
                "lockstep::LossSum");

  TypedTask(std::shared_ptr<M> module, Data& data, Loss loss)
      : module_(std::move(module)), data_(data), loss_(std::move(loss)) {}

  std::shared_ptr<torch::nn::Module> module() const override { return module_; }
  LoaderBase& data() override { return data_; }
  bool counts() const override { return std::is_same_v<Result, LossSum>; }

  void distribute(World& world, const DistributedDataParallelOptions& options) override {
    ddp_.emplace(world, module_, options);
  }
  void stop_distributing() override { ddp_.reset(); }
  DataParallelEngine* engine() override { return ddp_ ? &ddp_->engine() : nullptr; }
  void shard(World& world, const ShardedOptions& options) override {
    sharded_.emplace(world, module_, options);
  }
  ShardedEngine* sharded() override { return sharded_ ? &sharded_->engine() : nullptr; }
  void set_input(c10::Device device, std::optional<at::ScalarType> type) override {
    device_ = device;
    input_type_ = type;
  }

  std::vector<StepBatch> fetch_step() override {
    batches_.clear();
    std::vector<StepBatch> places;
    while (auto delivered = data_.next()) {
      const bool last = delivered->last_in_step;
      if (delivered->batch) {
        places.push_back({.address = delivered->address, .samples = delivered->samples()});
        move_to(*delivered->batch, device_);
        batches_.push_back(std::move(*delivered->batch));
      }
      if (last) break;
    }
    return places;
  }

  TaskLoss forward(std::size_t index) override { return loss_of(batches_.at(index)); }

  bool is_like_held(std::size_t index) override {
    const auto forms = HeldTensors::forms_of(places_of_tensors(batches_.at(index)));
    return held_.are_of(forms) &&
           (index == 0 || forms == HeldTensors::forms_of(places_of_tensors(batches_.front())));
  }
  void hold(std::size_t index) override {
    held_.take(places_of_tensors(batches_.at(index)));
    held_index_ = index;
  }
  void release_held() override { held_.release(); }
  TaskLoss forward_held() override {
    Batch& batch = batches_.at(held_index_);
    struct Exchanged {
      Exchanged(HeldTensors& held, Batch& batch) : held(held), batch(batch) {
        held.exchange(places_of_tensors(batch));
      }
      ~Exchanged() { held.exchange(places_of_tensors(batch)); }
      HeldTensors& held;
      Batch& batch;
    };
    const Exchanged exchanged(held_, batch);
    return loss_of(batch);
  }

 private:
  using Batch = typename Data::Batch;

  TaskLoss loss_of(Batch& batch) {
    View view(module_, ddp_ ? &*ddp_ : nullptr, sharded_ ? &*sharded_ : nullptr, input_type_);
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return {.value = loss_(view, batch)};
    } else {
      LossSum loss = loss_(view, batch);
      return {.value = std::move(loss.sum),
              .count = loss.count,
              .metrics = std::move(loss.metrics),
              .counted = std::move(loss.counted)};
    }
  }

  std::shared_ptr<M> module_;
  Data& data_;
  Loss loss_;
  std::optional<DistributedDataParallel<M>> ddp_;
  std::optional<ShardedDataParallel<M>> sharded_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::optional<at::ScalarType> input_type_;
  std::vector<Batch> batches_;  // of the step under way
  HeldTensors held_;
  std::size_t held_index_ = 0;
};

using Conclude = std::function<std::map<std::string, double>(ProcessGroup&)>;

template <typename M, typename Data, typename Metrics>
class TypedEvaluation : public EvaluationTask {
 public:
  TypedEvaluation(std::shared_ptr<M> module, Data& data, Metrics metrics, Conclude conclude)
      : module_(std::move(module)),
        data_(data),
        metrics_(std::move(metrics)),
        conclude_(std::move(conclude)) {}

  LoaderBase& data() override { return data_; }
  void set_input(c10::Device device, std::optional<at::ScalarType> type) override {
    device_ = device;
    input_type_ = type;
  }
  std::optional<BatchAddress> fetch() override {
    do {
      current_ = data_.next();
      if (!current_) return std::nullopt;
    } while (!current_->batch);
    move_to(*current_->batch, device_);
    return current_->address;
  }
  MetricSums metrics() override {
    ModelView<M> view(module_, /*ddp=*/nullptr, /*sharded=*/nullptr, input_type_);
    return as_metrics(metrics_(view, *current_->batch), static_cast<double>(current_->samples()));
  }
  std::map<std::string, double> conclude(ProcessGroup& group) override {
    return conclude_ ? conclude_(group) : std::map<std::string, double>();
  }

 private:
  std::shared_ptr<M> module_;
  Data& data_;
  Metrics metrics_;
  Conclude conclude_;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::optional<at::ScalarType> input_type_;
  std::optional<Delivered<typename Data::Batch>> current_;
};

}  // namespace detail

/// Data and a function for evaluating: `metrics(model, batch)` returns MetricSums, or what a loss
/// function returns, which is then the metric "loss". The loader should deal exactly
/// (Dealing::kExact), so that no sample counts twice.
template <typename Data, typename Metrics>
struct Evaluation {
  Data& data;
  Metrics metrics;
  /// For what is no mean over the data, such as BLEU or a rank correlation: called on every rank
  /// after its last batch, it gathers what `metrics` has kept over the group and returns more
  /// metrics, the same on every rank. When ranks are lost meanwhile the evaluation is done again
  /// from the first batch, so a sample can come twice.
  std::function<std::map<std::string, double>(ProcessGroup&)> conclude = {};
};
template <typename Data, typename Metrics>
Evaluation(Data&, Metrics) -> Evaluation<Data, Metrics>;
template <typename Data, typename Metrics, typename Function>
Evaluation(Data&, Metrics, Function) -> Evaluation<Data, Metrics>;

/// Trains a model on all ranks of a job, from the first step to the last, through stops and
/// restarts.
///
///     auto model = std::make_shared<Net>();
///     lockstep::Loader data(dataset, {.batch_size = 32, .shuffle = true, .num_workers = 2});
///     lockstep::Trainer trainer({.epochs = 10, .snapshots = {.directory = "run"}});
///     trainer.fit(model, data, [](auto& model, const auto& batch) {
///       return torch::mse_loss(model(batch.first), batch.second);
///     });
///
/// Under a launcher (`lockstep run`, torchrun, srun, mpirun) every process is a rank. In a program
/// that was started alone, `devices` says how many processes fit() starts: each runs main() again
/// up to here.
///
/// Samples, random numbers and the order of all sums go by slots, which are fixed when the run
/// starts for the first time. A run that was stopped, killed or moved and goes on from a snapshot
/// therefore ends with the bits of one that was never disturbed (docs/trainer.md says what that
/// takes).
///
/// Thread rule: one thread.
class Trainer {
 public:
  /// Throws InvalidArgument when the options contradict each other.
  explicit Trainer(TrainerOptions options);
  /// In a world that the program has made itself.
  Trainer(World& world, TrainerOptions options);
  ~Trainer();

  const TrainerOptions& options() const { return options_; }

  /// Afterwards the model holds the weights of the last committed step (TrainerOptions::shard:
  /// unless gather_at_end is false). Throws what happened: see
  /// lockstep/callback.h for NonFiniteStep, lockstep/error.h for Preempted and PeerLost.
  template <typename Model, typename Data, typename Loss>
  TrainResult fit(const Model& model, Data& data, Loss loss) {
    auto module = detail::module_pointer(model);
    detail::TypedTask task(module, data, std::move(loss));
    return run(task, nullptr);
  }

  template <typename Model, typename Data, typename Loss, typename EvaluationData, typename Metrics>
  TrainResult fit(const Model& model, Data& data, Loss loss,
                  const Evaluation<EvaluationData, Metrics>& evaluation) {
    auto module = detail::module_pointer(model);
    detail::TypedTask task(module, data, std::move(loss));
    detail::TypedEvaluation evaluation_task(module, evaluation.data, evaluation.metrics,
                                            evaluation.conclude);
    return run(task, &evaluation_task);
  }

 private:
  TrainResult run(TrainingTask& task, EvaluationTask* evaluation);

  TrainerOptions options_;
  World* world_ = nullptr;
};

/// The same as a function.
template <typename Model, typename Data, typename Loss>
TrainResult fit(const Model& model, Data& data, Loss loss, TrainerOptions options) {
  return Trainer(std::move(options)).fit(model, data, std::move(loss));
}

}  // namespace lockstep
