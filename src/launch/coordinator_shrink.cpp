// Places that nobody fills: a job goes on with fewer workers, and with all of them later.
#include <algorithm>
#include <utility>

#include "core/rank_list.h"
#include "launch/coordinator.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A worker that dies before it takes part would go on doing so.
constexpr int kMostDeathsWhileJoining = 3;
// A place that fails again and again is tried less and less often: up to 2^4 times the pause.
constexpr int kMostDoublings = 4;

}  // namespace

bool Coordinator::may_leave_out(std::size_t count) const {
  const int least = options_.terms.min_world;
  return least > 0 && std::cmp_greater_equal(world_size(), count + static_cast<std::size_t>(least));
}

// A new process would fare no better.
std::optional<std::string> Coordinator::reason_to_leave_out(int place) const {
  const auto found = deaths_.find(place);
  const int deaths = found == deaths_.end() ? 0 : found->second;
  if (absent_.contains(seat_of(place))) return "";
  if (unstartable_.contains(place)) return concat("rank ", place, " cannot be started");
  if (deaths > 0 && absences_.contains(place)) {
    return concat("rank ", place, " had been left out before");
  }
  if (deaths > kMostDeathsWhileJoining) {
    return concat("rank ", place, " died ", deaths, " times before all could go on");
  }
  return std::nullopt;
}

Coordinator::Filling Coordinator::fill(const std::set<int>& lost) const {
  const int most = options_.terms.max_replacements;
  Filling filling;
  for (const int place : lost) {
    auto reason = reason_to_leave_out(place);
    if (!reason && std::cmp_greater_equal(filling.replaced.size(), most - replacements_)) {
      reason = most == 0 ? "none is replaced (--max-replacements 0)"
                         : concat(replacements_, " of ", most,
                                  " replacements are used (--max-replacements)");
    }
    (reason ? filling.left_out : filling.replaced).insert(place);
    if (reason && filling.why.empty()) filling.why = *reason;
  }
  return filling;
}

void Coordinator::leave_out(const std::set<int>& places) {
  for (const int place : places) {
    const int absences = absences_[place]++;
    const int doublings = std::min(absences, kMostDoublings);
    left_out_[place] = now_ + options_.rejoin_after * (1 << doublings);
    // A node that is back is as good as new, the first time.
    if (absences == 0 && absent_.contains(seat_of(place))) left_out_[place] = now_;
    unstartable_.erase(place);
  }
}

std::string Coordinator::count_of_those_in() const {
  return left_out_.empty() ? "all ranks" : concat(world_size(), " of ", places_, " ranks");
}

std::string Coordinator::words_about_min_world() const {
  const int least = options_.terms.min_world;
  if (least == 0) return "";
  return concat(", and fewer than ", least, " ranks would be left (--min-world)");
}

// After the places have been left out, and replacements counted.
std::string Coordinator::describe(const Ending& ending, const Filling& filling) const {
  std::string text = ending.reason;
  if (!filling.left_out.empty() && !filling.why.empty()) text += concat("; ", filling.why);
  text += ": ";
  const bool is_one =
      filling.replaced.size() + filling.left_out.size() == 1 &&
      (filling.left_out.empty() || !absent_.contains(seat_of(*filling.left_out.begin())));
  if (!filling.replaced.empty()) {
    text += filling.replaced.size() != 1 ? concat(filling.replaced.size(), " replacements start")
            : is_one                     ? "a replacement takes its place"
                                         : "a replacement starts";
    text += concat(" (", replacements_, " of ", options_.terms.max_replacements, ")");
  }
  if (filling.left_out.empty()) return text;
  if (!filling.replaced.empty()) text += ", ";
  text += is_one ? "it is"
                 : concat(list_some_ranks({filling.left_out.begin(), filling.left_out.end()}),
                          filling.left_out.size() == 1 ? " is" : " are");
  return text + concat(" left out, ", count_of_those_in(), " go on (--min-world ",
                       options_.terms.min_world, ")");
}

// Those at work are stopped for it, so only when all of them can be carried over and nobody is
// about to end.
std::optional<Time> Coordinator::next_rejoin() const {
  if (left_out_.empty() || phase_ != Phase::running || !settled_ || loss_) return std::nullopt;
  if (std::cmp_less(with_state_.size(), world_size())) return std::nullopt;
  if (lacks_participants() || counts_.succeeded > 0) return std::nullopt;
  if (counts_.linked < counts_.members) return std::nullopt;
  std::set<Time> times;
  visit(left_out_.size());
  for (const auto& [place, when] : left_out_) times.insert(when);
  const auto next =
      std::ranges::find_if(times, [&](Time time) { return !places_to_fill(time).empty(); });
  if (next == times.end()) return std::nullopt;
  return *next;
}

std::optional<Time> Coordinator::known_rejoin() const {
  if (!rejoin_) rejoin_ = next_rejoin();
  return *rejoin_;
}

int Coordinator::left_out_with_node() const {
  return static_cast<int>(std::ranges::count_if(
      left_out_, [&](const auto& each) { return !absent_.contains(seat_of(each.first)); }));
}

void Coordinator::rejoin_if_due() {
  const auto due = next_rejoin();
  if (!due || now_ < *due) return;
  const Filling filling{.replaced = places_to_fill(now_), .left_out = {}, .why = ""};
  seat_nodes_of(filling.replaced);
  const std::string who = list_some_ranks({filling.replaced.begin(), filling.replaced.end()});
  const bool is_one = filling.replaced.size() == 1;
  lost_since_ = now_;
  was_loss_ = false;
  reform({.code = 1, .reason = concat(who, is_one ? " joins" : " join", " again")}, filling);
  actions_.push_back(Say{
      concat(who,
             is_one ? " is tried again: a new process takes its place ("
                    : concat(" are tried again: ", filling.replaced.size(), " processes start ("),
             replacements_, " of ", options_.terms.max_replacements, ")")});
}

}  // namespace lockstep
