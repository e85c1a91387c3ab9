#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/progress.h"
#include "lockstep/step_profiler.h"
#include "lockstep/step_transaction.h"
#include "lockstep/trainer_options.h"
#include "lockstep/training_task.h"
#include "lockstep/world.h"
#include "train/gradient_step.h"
#include "train/part_standing.h"
#include "train/run_curves.h"
#include "train/run_journal.h"
#include "train/run_state.h"
#include "train/slot_sums.h"
#include "train/step_clock.h"
#include "train/stop_watch.h"

namespace lockstep {

/// One run of a Trainer on one rank. What lasts is in RunState; a step is computed by GradientStep
/// and takes effect in commit_step(); everything else here decides when to report, evaluate, save
/// and end.
class TrainerCore {
 public:
  TrainerCore(World& world, TrainingTask& task, EvaluationTask* evaluation,
              const TrainerOptions& options);
  ~TrainerCore();

  TrainResult run();

 private:
  /// What all slots said in a step in which they talk beside the gradients.
  struct Totals {
    double loss_sum = 0;
    double count = 0;
    std::int64_t samples = 0;
    std::map<std::string, double> metrics = {};
  };

  // trainer_core.cpp: set-up, epochs
  void check_options() const;
  void check_several_slots();
  void find_place();
  void resume(const Snapshot& snapshot);
  void begin_with(const Snapshot& snapshot);
  void share_out(int slots);
  void share_out_again();
  void place_compression();
  void open_snapshots();
  void make_step_parts(bool formed_again);
  std::unique_ptr<StepGraphs> make_graphs() const;
  void proceed();
  void run_epoch();
  bool run_steps();
  std::optional<std::int64_t> steps_in_epoch() const;
  bool is_epoch_complete() const;
  bool all_have_data(const std::vector<StepBatch>& batches);

  // trainer_shard.cpp: where each rank keeps a part
  void check_shard() const;
  bool is_deferred() const;
  void spread_model();
  std::optional<Snapshot> find_snapshot();
  std::string who_has_a_dead_ranks_part() const;

  // trainer_step.cpp: a step
  void train_step(const std::vector<StepBatch>& batches);
  double normalize(const StepGradients& gradients, const std::optional<Totals>& totals,
                   StepArguments& arguments);
  bool is_updated_by_own_kernel() const;
  double normalize_for_update(std::optional<double> divisor, StepArguments& arguments);
  void watch_recording();
  std::vector<at::Tensor> rates_for_update();
  void part_of_step(const std::string& name, const std::function<void()>& work);
  void commit_step(StepTransactions::Step& transaction, const StepArguments& arguments);
  void on_non_finite(StepTransactions::Step& transaction, const std::vector<StepBatch>& batches,
                     const GradientStep::ScaleLoss& scale_loss);
  void advance(const std::vector<StepBatch>& batches, const std::optional<Totals>& totals);
  void tell_launcher(const StepTimes& times);

  bool logs(std::int64_t step) const;
  Totals talk(const StepGradients& gradients);
  void take_stop_flags(const double* flags);

  // trainer_reports.cpp: what else there is
  void after_step(const StepReport& report);
  void after_epoch();
  void settle();
  bool evaluate_now();
  bool watch_evaluation();
  bool due(const Every& every, std::int64_t Every::*unit, std::int64_t value) const;
  void save(bool best);
  void record(RunEvent event);
  nlohmann::json line_of(const RunEvent& event);
  void introduce_tracker();
  void tell(const RunEvent& event);
  void assume_role();
  void show_progress();
  ProgressState progress_state() const;
  void say(const std::string& text);   // on rank 0, from the thread that trains
  void warn(const std::string& text);  // on any rank, from any thread
  bool is_saved();
  void await_disk() const;
  void finish();
  void leave_preempted(bool saved) const;
  bool is_main() const { return world_.rank() == 0; }

  // trainer_recovery.cpp: going on after ranks were replaced (docs/recovery.md)
  std::string obstacle_to_recovery() const;
  bool all_are_replaced();
  bool recoverable();
  bool others_were_lost();
  void carry_over(bool formed);
  void agree_on_state(std::chrono::steady_clock::duration forming);
  /// How the ranks have come to the same state.
  struct Takeover {
    int source = 0;      // whose values all have
    bool takes = false;  // this rank has taken tensors
    /// What this rank, which speaks for all givers of it, has given: "its state", and to whom.
    struct Gift {
      std::string what;
      std::vector<int> takers;
      std::size_t bytes = 0;  // to each of them
    };
    std::vector<Gift> gifts = {};
    std::vector<int> part_sources = {};  // of a sharded run: whose tensors of each part are right
  };
  void tell_gifts(const Takeover& taken, const std::string& times);
  Takeover take_over();
  void adopt(const nlohmann::json& values);
  Snapshot give_up_state(const StateOffer& offer);
  void take_state(Snapshot state, const nlohmann::json& values);
  void take_values(Snapshot state);
  nlohmann::json progress_values() const;
  void take_progress_values(const nlohmann::json& values);
  bool save_was_lost() const;
  void readmit_to_snapshots(bool takes);
  void verify_state(const Takeover& taken);

  // trainer_shard_recovery.cpp: the same where each rank keeps a part
  bool has_parts_elsewhere() const;
  PartPlaces part_places() const;
  void agree_to_update(const StepArguments& arguments);
  void make_prepared_update();
  StateHolder part_holder(const HeldParts& held);
  Snapshot give_up_copy(const StateOffer& offer);
  void make_copies();
  void join_copies();
  Takeover take_over_parts();

  // trainer_replicas.cpp: whether all ranks have the same state
  std::string fingerprint() const;
  nlohmann::json part_fingerprints() const;
  bool compares_after(std::int64_t step) const;
  void compare_replicas();
  void vote(const std::vector<int>& ranks, const std::function<std::string(int)>& fingerprint_of);
  [[noreturn]] void reject_replicas(const std::vector<int>& wrong, const std::string& what);

  World& world_;
  TrainingTask& task_;
  EvaluationTask* evaluation_;
  const TrainerOptions& options_;
  std::shared_ptr<torch::nn::Module> module_;

  StopWatch stop_;                      // first: a signal may come while the rest is made
  std::string directory_;               // empty: nothing is kept
  std::unique_ptr<Progress> progress_;  // on rank 0; what follows reports to it
  std::unique_ptr<SnapshotStore> snapshots_;
  std::unique_ptr<RunState> state_;
  SlotShare share_;
  std::unique_ptr<SlotSums> sums_;
  StepClock clock_;
  std::unique_ptr<StepGraphs> graphs_;  // null: nothing is recorded
  std::unique_ptr<GradientStep> gradients_;
  std::unique_ptr<StepTransactions> transactions_;
  RunCurves curves_;
  std::unique_ptr<StepProfiler> profiler_;

  TrainResult result_;
  std::optional<StopReason> reason_;                            // set: the run ends
  std::optional<std::pair<std::int64_t, std::int64_t>> saved_;  // step and epoch of a snapshot
  mutable std::optional<std::pair<std::int64_t, std::optional<std::int64_t>>> known_steps_;
  bool saved_best_ = false;
  bool save_in_doubt_ = false;  // this process writes, and has not done the last save itself
  std::optional<std::vector<std::string>> metric_names_;
  std::optional<StopReason> stop_after_step_;
  bool ended_ = false;  // all ranks have done everything

  /// What is to be done before the next step. With `commits_` it is where a run stands between
  /// steps: each commit is a change of the state that all ranks make alike.
  struct Duties {
    bool compare = false;  // replicas
    bool evaluate = false;
    bool save = false;
    bool best = false;  // the snapshot is that of the best evaluation
  };
  Duties duties_;
  std::int64_t commits_ = 0;
  std::int64_t updates_ = 0;  // those commits that have changed parameters
  /// All that an update needs, from when all ranks are asked for theirs until it is made.
  struct PreparedUpdate {
    StepArguments arguments;
    std::vector<at::Tensor> buffers;  // as they will be
  };
  std::optional<PreparedUpdate> prepared_;
  /// What the last parts of a step compute with and leave, on the device.
  struct Numbers {
    at::Tensor divisor, divisor_inverse, norm, grad_factor;
    std::vector<at::Tensor> lr;
  };
  Numbers recorded_, as_it_is_;  // what was recorded has its own for good
  int steps_unrecorded_ = 0;     // by a Trainer that is to record
  Numbers& step_numbers() {
    return graphs_ != nullptr && graphs_->is_usual() ? recorded_ : as_it_is_;
  }
  bool replaces_ranks_ = false;     // a rank that dies is replaced in place: all ranks say so
  bool agrees_to_updates_ = false;  // before each update: of a sharded run of that kind
  RunJournal journal_;
  bool has_state_ = false;       // false: this process has yet to take it from the others
  bool state_given_up_ = false;  // a transfer into it has begun and not ended
  bool recovers_ = false;        // the launcher has been told that this process can be carried over
  std::int64_t log_lines_ = 0;   // the same on every rank, though only rank 0 has the file
  /// What this rank has spent beside steps since its last line, in seconds.
  struct Pauses {
    double save = 0, evaluate = 0;
  };
  Pauses pauses_;
  Tracker* introduced_ = nullptr;
  double counted_ = 0;  // by this program, not by earlier runs
  std::int64_t samples_in_step_ = 0;

  /// Ranks talk about stopping a few times a second, whatever a step takes: this is the next step.
  std::int64_t next_talk_ = 0;
  std::chrono::steady_clock::time_point last_talk_;
  std::int64_t steps_since_talk_ = 0;
};

}  // namespace lockstep
