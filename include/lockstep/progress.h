#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

struct ProgressOptions {
  int fd = 2;                                // where to write; standard error
  std::optional<bool> bar = std::nullopt;    // unset: a bar on a terminal, else plain lines
  std::chrono::milliseconds bar_every{100};  // at most this often
  std::chrono::milliseconds line_every{std::chrono::seconds(10)};
  std::string unit = "samples";  // what `count` counts
};

/// Where a run is. Values that are not known are left out of the line.
struct ProgressState {
  std::int64_t step = 0;
  std::optional<std::int64_t> total_steps = std::nullopt;
  std::optional<std::int64_t> epoch = std::nullopt;  // counted from 1
  std::optional<std::int64_t> total_epochs = std::nullopt;
  std::int64_t count = 0;  // samples or tokens since the program began, over all ranks
  std::vector<std::pair<std::string, double>> values = {};  // "loss", "lr", ... in this order
  /// Floating-point operations for one `count`, and how many all devices can do in a second; both
  /// known: the line says how much of that is used (MFU).
  double flops_per_count = 0;
  double peak_flops = 0;
};

/// One line that tells how far a run is, how fast it goes and how long it will take: a bar that is
/// drawn over itself on a terminal, a plain line now and then elsewhere. For one process of a job.
///
/// Writing never fails the run: what cannot be written is dropped. say() may be called from any
/// thread, the rest from one.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(const ProgressOptions& options = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Leaves the last state of the bar standing.
  ~Progress();

  /// Cheap when nothing is due to be drawn.
  void update(const ProgressState& state) { update(state, Clock::now()); }
  void update(const ProgressState& state, Clock::time_point now);

  /// Whether the next update() would write. Lets a caller skip computing what it would say.
  bool due() const { return due(Clock::now()); }
  bool due(Clock::time_point now) const;

  /// A line of its own, above the bar.
  void say(std::string_view text);

  /// Draws the state however recently another was drawn, and ends the bar.
  void finish(const ProgressState& state);

 private:
  /// What the rates are measured from: a moment some seconds ago.
  struct Mark {
    Clock::time_point time;
    std::int64_t step = 0;
    std::int64_t count = 0;
  };

  void draw(const ProgressState& state, Clock::time_point now);
  std::string line(const ProgressState& state, Clock::time_point now) const;
  void write(std::string_view text);

  std::mutex mutex_;
  ProgressOptions options_;
  bool bar_;
  std::vector<Mark> marks_;  // oldest first, a second or more apart
  std::optional<Clock::time_point> drawn_at_;
  std::string on_screen_;  // the bar as it stands, without its end of line
};

/// "18.3k", "4.21M": three digits and a letter for thousands.
std::string short_number(double value);
/// "0:42", "1:07:03", "3 d 02:00".
std::string short_duration(std::chrono::seconds duration);

}  // namespace lockstep
