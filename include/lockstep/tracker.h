#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace lockstep {

/// Runs of Weights & Biases, written to the disk; `wandb sync` uploads them (docs/tracking.md).
/// What is empty here is taken from W&B's own variables ($WANDB_PROJECT, ...), then from `group`.
struct WandbOptions {
  enum class Runs { rank_0, node, rank };  // who writes one
  enum class Resume { allow, must, never };

  Runs runs = Runs::rank_0;
  std::optional<Resume> resume = std::nullopt;  // unset: $WANDB_RESUME, else allow
  std::string project = {};
  std::string entity = {};
  std::string experiment = {};  // the begin of the ids of runs; unset: the folder's name
  std::string group = {};       // unset: the experiment
  std::string job_type = {};
  std::string notes = {};
  std::vector<std::string> tags = {};
};

/// What is kept of a run beside the JSON lines of its metrics.
struct TrackingOptions {
  bool tensorboard = false;
  bool wandb = false;
  WandbOptions wandb_options = {};
  /// What the run was made with: an object of numbers, texts and objects of them.
  nlohmann::json config = nlohmann::json::object();
  /// Between samples of CPU, memory, disk, network and GPU; 0: none.
  std::chrono::milliseconds sample_every{10'000};
};

/// Reads a list like "jsonl,tensorboard,wandb" into the options. JSON lines are always written, and
/// may be named. Throws InvalidArgument for other names.
void choose_sinks(TrackingOptions& options, std::string_view list);

/// How numbers are spread. `counts[i]` of them are in (edges[i], edges[i + 1]].
struct Histogram {
  std::vector<double> edges;
  std::vector<double> counts;
  double min = 0, max = 0, sum = 0, sum_squares = 0;

  /// Numbers that are not finite are left out.
  static Histogram of(std::span<const double> values, int bins = 64);
};

/// How far a run is: lines of metrics that it has written, and its step.
struct TrackPlace {
  std::int64_t lines = 0;
  std::int64_t step = 0;
};

/// A line of metrics/rank_R.jsonl.
struct MetricLine {
  std::int64_t step = 0;
  double time = 0;        // seconds since 1970
  nlohmann::json values;  // an object; null where a number was not finite
};

struct TrackerOptions {
  std::string directory;  // of the run
  int rank = 0;           // the number in the names of files
  int local_rank = 0;
  int node_rank = 0;
  TrackingOptions tracking = {};
  /// A run that goes on from here; what it has written after that is dropped. Unset: a new run.
  std::optional<TrackPlace> place = std::nullopt;
  std::size_t queue_limit = 8192;  // records that wait for the disk; more are dropped
  /// How long flush() and the end wait for a disk that does not answer.
  std::chrono::milliseconds patience{2'000};
  std::chrono::milliseconds retry_after{1'000};  // first; a sink that fails again waits longer
  /// Gets the few lines that this has to say, from any thread. Unset: standard error.
  std::function<void(const std::string& line)> report = {};
};

/// Keeps what a run has to tell, without ever being in its way: all calls put a record into a queue
/// and return; a thread writes. A disk that is full, slow or gone costs records, which are counted,
/// and is reported once; the run goes on.
///
/// Files are appended to a whole record at a time, so that a process that is killed leaves files
/// that can be read up to the last record. Thread-safe.
class Tracker {
 public:
  explicit Tracker(TrackerOptions options);
  /// Writes what is left, for as long as `patience` allows.
  ~Tracker();
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  /// A line of metrics. Hand them over in the order of steps, and once a step cannot be undone.
  void metrics(std::int64_t step, nlohmann::json values);
  void event(std::string_view name, nlohmann::json fields = nlohmann::json::object());
  void text(std::int64_t step, std::string_view name, std::string_view text);
  void histogram(std::int64_t step, std::string_view name, const Histogram& histogram);
  /// Of the machine and the process, at this moment.
  void system(nlohmann::json values);
  /// What the program has printed, for W&B.
  void console(std::string_view text);
  /// A file that belongs to the run, for W&B; `name` is its place there.
  void file(std::string_view path, std::string_view name);

  /// Waits until all that came before is written; false: not within `patience`.
  bool flush();
  /// The run is over. Sinks say so; without this call they show a run that has crashed.
  void finish(bool succeeded);

  /// How many lines were kept of a run that goes on, and the last of them (at most 64).
  std::int64_t kept() const;
  const std::vector<MetricLine>& tail() const;
  std::uint64_t dropped() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // with the thread, which may have to be left behind
};

}  // namespace lockstep
