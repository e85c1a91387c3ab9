#include "lockstep/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::duration;
using std::chrono::seconds;

constexpr seconds kRateWindow{10};

template <typename... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

int terminal_width(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

// 12 characters between brackets: "[=====>      ]".
std::string bar_of(double part) {
  constexpr int kWidth = 12;
  const int done = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  std::string text(kWidth, ' ');
  std::fill_n(text.begin(), done, '=');
  if (done < kWidth) text[done] = '>';
  return concat("[", text, "]");
}

}  // namespace

std::string short_number(double value) {
  if (!std::isfinite(value)) return format("%g", value);
  static constexpr std::array<const char*, 6> kLetters = {"", "k", "M", "G", "T", "P"};
  std::size_t letter = 0;
  while (std::abs(value) >= 999.5 && letter + 1 < kLetters.size()) {
    value /= 1000;
    ++letter;
  }
  const int decimals = std::abs(value) >= 99.95 ? 0 : std::abs(value) >= 9.995 ? 1 : 2;
  return format("%.*f", decimals, value) + kLetters[letter];
}

std::string short_duration(seconds length) {
  const long long total = length.count();
  const long long days = total / 86400, hours = total / 3600 % 24, minutes = total / 60 % 60;
  if (days > 0) return format("%lld d %02lld:%02lld", days, hours, minutes);
  if (hours > 0) return format("%lld:%02lld:%02lld", hours, minutes, total % 60);
  return format("%lld:%02lld", minutes, total % 60);
}

Progress::Progress(const ProgressOptions& options)
    : options_(options), bar_(options.bar.value_or(::isatty(options.fd) == 1)) {}

Progress::~Progress() {
  if (!on_screen_.empty()) write("\n");
}

bool Progress::due(Clock::time_point now) const {
  return !drawn_at_ || now - *drawn_at_ >= (bar_ ? options_.bar_every : options_.line_every);
}

void Progress::update(const ProgressState& state, Clock::time_point now) {
  if (marks_.empty()) {
    marks_.push_back({.time = now, .step = state.step, .count = state.count});
    if (!bar_) drawn_at_ = now;  // the first plain line comes when there is something to tell
  }
  const std::lock_guard lock(mutex_);
  if (due(now)) draw(state, now);
}

void Progress::draw(const ProgressState& state, Clock::time_point now) {
  if (now - marks_.back().time >= seconds(1)) {
    marks_.push_back({.time = now, .step = state.step, .count = state.count});
    while (marks_.size() > 2 && now - marks_[1].time >= kRateWindow) marks_.erase(marks_.begin());
  }
  drawn_at_ = now;
  std::string text = line(state, now);
  if (!bar_) return write(concat(text, "\n"));
  const auto width = static_cast<std::size_t>(terminal_width(options_.fd));
  if (text.size() >= width) text.resize(width - 1);
  // Blanks hide what a longer line has left behind.
  const std::size_t blanks = on_screen_.size() > text.size() ? on_screen_.size() - text.size() : 0;
  write(concat("\r", text, std::string(blanks, ' ')));
  on_screen_ = text;
}

std::string Progress::line(const ProgressState& state, Clock::time_point now) const {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "  ") + part; };
  if (state.epoch) {
    add(state.total_epochs ? concat("epoch ", *state.epoch, "/", *state.total_epochs)
                           : concat("epoch ", *state.epoch));
  }
  const bool known = state.total_steps && *state.total_steps > 0;
  const double part = known ? static_cast<double>(state.step) / *state.total_steps : 0;
  if (known && bar_) add(bar_of(part) + format(" %3d%%", static_cast<int>(part * 100)));
  add(known ? concat("step ", state.step, "/", *state.total_steps) : concat("step ", state.step));
  for (const auto& [name, value] : state.values) add(name + " " + format("%.4g", value));

  const Mark& from = marks_.front();
  const double elapsed = duration<double>(now - from.time).count();
  if (elapsed > 0 && state.step > from.step) {
    const double steps_per_second = (state.step - from.step) / elapsed;
    const double counts_per_second = (state.count - from.count) / elapsed;
    if (state.count > from.count) add(short_number(counts_per_second) + " " + options_.unit + "/s");
    add(short_number(steps_per_second) + " steps/s");
    if (state.flops_per_count > 0 && state.peak_flops > 0) {
      const double used = counts_per_second * state.flops_per_count / state.peak_flops;
      add(format("MFU %.1f%%", used * 100));
    }
    if (known && state.step < *state.total_steps) {
      const double left = (*state.total_steps - state.step) / steps_per_second;
      add("left " + short_duration(seconds(std::llround(std::min(left, 1e12)))));
    }
  }
  return text;
}

void Progress::say(std::string_view text) {
  const std::lock_guard lock(mutex_);
  if (on_screen_.empty()) return write(concat(text, "\n"));
  const std::size_t blanks = on_screen_.size() > text.size() ? on_screen_.size() - text.size() : 0;
  write(concat("\r", text, std::string(blanks, ' '), "\n", on_screen_));
}

void Progress::finish(const ProgressState& state) {
  if (marks_.empty()) return;
  const std::lock_guard lock(mutex_);
  draw(state, Clock::now());
  if (!on_screen_.empty()) write("\n");
  on_screen_.clear();
}

// One write, so that lines of several processes on one terminal do not mix.
void Progress::write(std::string_view text) {
  [[maybe_unused]] const auto written = ::write(options_.fd, text.data(), text.size());
}

}  // namespace lockstep
