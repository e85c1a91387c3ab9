#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <iomanip>
#include <sstream>
#include <string>
#include <string_view>

#include "launch/messages.h"

namespace lockstep::sim {

/// Everything that happened, as one number; and as lines where somebody wants to read them.
class Trace {
 public:
  enum class Lines { none, keep_last, print };
  static constexpr std::size_t kKept = 60;

  explicit Trace(Lines lines) : lines_(lines) {}

  void note(Time now, std::string_view who, std::string_view what, std::string_view about = {}) {
    mix(static_cast<std::uint64_t>(now.count()));
    for (const std::string_view part : {who, what, about}) mix(part);
    ++events_;
    if (lines_ == Lines::none) return;
    std::ostringstream line;
    line << std::fixed << std::setprecision(6) << std::setw(11)
         << std::chrono::duration<double>(now).count() << "  " << std::left << std::setw(12) << who
         << what;
    if (!about.empty()) line << "  " << about;
    if (lines_ == Lines::print) std::printf("%s\n", line.str().c_str());
    last_.push_back(line.str());
    if (last_.size() > kKept) last_.pop_front();
  }

  std::uint64_t hash() const { return hash_; }
  std::uint64_t events() const { return events_; }
  const std::deque<std::string>& last() const { return last_; }

 private:
  void mix(std::uint64_t value) {
    hash_ = (hash_ ^ value) * 0x100000001b3ULL;
    hash_ ^= hash_ >> 29;
  }
  void mix(std::string_view text) {
    for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    mix(text.size());
  }

  Lines lines_;
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
  std::uint64_t events_ = 0;
  std::deque<std::string> last_;
};

}  // namespace lockstep::sim
