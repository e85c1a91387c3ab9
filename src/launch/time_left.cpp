#include "launch/time_left.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <utility>

#include "core/parse_integer.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::seconds;

// The controller of a large cluster may be slow; the warning must not wait for it for long.
constexpr seconds kPatience{5};

std::optional<seconds> seconds_in(const Environment& environment, std::string_view name) {
  const auto text = environment.get(name);
  if (!text) return std::nullopt;
  const auto value = parse_integer<std::int64_t>(*text);
  if (!value || *value <= 0) return std::nullopt;
  return seconds(*value);
}

seconds until(WallTime end, WallTime now) {
  return std::max(seconds(0), std::chrono::duration_cast<seconds>(end - now));
}

}  // namespace

std::optional<seconds> time_left(const Environment& environment, WallTime started, WallTime now) {
  for (const std::string_view name : {"SLURM_JOB_END_TIME", "LOCKSTEP_JOB_END_TIME"}) {
    if (const auto end = seconds_in(environment, name)) return until(WallTime(*end), now);
  }
  if (const auto length = seconds_in(environment, "PBS_WALLTIME")) {
    return until(started + *length, now);
  }
  return std::nullopt;
}

std::optional<WallTime> end_time_of_job(std::string_view text) {
  constexpr std::string_view kField = " EndTime=";
  const std::size_t field = text.find(kField);
  if (field == std::string_view::npos) return std::nullopt;
  const std::string value(text.substr(field + kField.size(), 19));  // 2026-11-16T12:34:56
  std::tm time = {};
  const char* rest = ::strptime(value.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (rest == nullptr || *rest != '\0') return std::nullopt;  // Unknown, N/A
  time.tm_isdst = -1;
  return std::chrono::system_clock::from_time_t(std::mktime(&time));
}

TimeLeftFinder::TimeLeftFinder(EventLoop& loop, Environment environment, std::string folder)
    : loop_(loop),
      environment_(std::move(environment)),
      output_path_(std::move(folder) + "/scontrol.txt"),
      started_(std::chrono::system_clock::now()) {}

TimeLeftFinder::~TimeLeftFinder() {
  forget();
}

void TimeLeftFinder::find(Answer answer) {
  if (const auto left = time_left(environment_, started_, std::chrono::system_clock::now())) {
    return answer(left);
  }
  waiting_.push_back(std::move(answer));
  if (question_) return;
  if (!can_ask()) return tell(seconds_in(environment_, "LOCKSTEP_WARNING_SECONDS"));
  try {
    ask();
  } catch (const Error&) {  // there is no scontrol here
    give_up();
  }
}

bool TimeLeftFinder::can_ask() const {
  return environment_.has("SLURM_JOB_ID") && environment_.get("SLURM_NODEID").value_or("0") == "0";
}

void TimeLeftFinder::ask() {
  question_.emplace(SubprocessOptions{
      .argv = {"scontrol", "--oneliner", "show", "job", *environment_.get("SLURM_JOB_ID")},
      .set_environment = {{"SLURM_TIME_FORMAT", "standard"}},
      .unset_environment = {},
      .stdout_path = output_path_,
      .stderr_path = "/dev/null"});
  loop_.watch(question_->pidfd(), EPOLLIN, [this](std::uint32_t) { on_answer(); });
  limit_ = loop_.after(kPatience, [this] { give_up(); });
}

void TimeLeftFinder::on_answer() {
  std::ifstream file(output_path_);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto end = end_time_of_job(text);
  if (!end) return give_up();
  tell(until(*end, std::chrono::system_clock::now()));
}

void TimeLeftFinder::give_up() {
  tell(seconds_in(environment_, "LOCKSTEP_WARNING_SECONDS"));
}

void TimeLeftFinder::tell(std::optional<seconds> left) {
  forget();
  for (const Answer& answer : std::exchange(waiting_, {})) answer(left);
}

void TimeLeftFinder::forget() {
  loop_.cancel(limit_);
  if (!question_) return;
  loop_.unwatch(question_->pidfd());
  question_.reset();
  ::unlink(output_path_.c_str());
}

}  // namespace lockstep
