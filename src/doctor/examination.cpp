#include "doctor/examination.h"

#include <algorithm>
#include <chrono>

#include "core/hmac.h"
#include "doctor/pair_schedule.h"
#include "doctor/smoke.h"
#include "launch/endpoint.h"

#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Questions = std::vector<std::optional<DoctorContent>>;

constexpr int kClockSamples = 7;
constexpr milliseconds kClockLimit{3000};
constexpr milliseconds kNamesLimit{20000};
constexpr std::size_t kMostNames = 64;
constexpr milliseconds kProbeLimit{30000};
constexpr int kVisibleLimitMs = 10000;
constexpr milliseconds kMarkLeeway{5000};

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The sample with the shortest round trip says most: the answer was given within it.
std::optional<Examination::Offset> measure_clock(DoctorDesk& desk, std::size_t node) {
  std::optional<Examination::Offset> best;
  for (int sample = 0; sample < kClockSamples; ++sample) {
    const double before = wall_seconds();
    const auto begin = Clock::now();
    const auto answer = desk.ask_one(node, ClockQuestion{}, kClockLimit);
    const double trip = std::chrono::duration<double>(Clock::now() - begin).count();
    const auto* clock = answer ? std::get_if<ClockAnswer>(&*answer) : nullptr;
    if (clock == nullptr) return best;
    const double theirs = static_cast<double>(clock->wall_ns) / 1e9;
    if (!best || trip / 2 < best->uncertainty) {
      best = {.seconds = theirs - (before + trip / 2), .uncertainty = trip / 2};
    }
  }
  return best;
}

// Against the first node's, which need not be on this machine.
void measure_clocks(DoctorDesk& desk, Examination& result) {
  for (std::size_t node = 0; node < result.nodes.size(); ++node) {
    result.clocks.push_back(measure_clock(desk, node));
  }
  if (!result.clocks[0]) return result.clocks.assign(result.nodes.size(), std::nullopt);
  const Examination::Offset first = *result.clocks[0];
  for (auto& clock : result.clocks) {
    if (!clock) continue;
    clock->seconds -= first.seconds;
    clock->uncertainty += first.uncertainty;
  }
}

template <typename Answer>
std::optional<Answer> as(const std::optional<DoctorContent>& content) {
  const auto* answer = content ? std::get_if<Answer>(&*content) : nullptr;
  return answer ? std::optional(*answer) : std::nullopt;
}

void ask_names(DoctorDesk& desk, Examination& result) {
  NamesQuestion question;
  for (const DeskNode& node : result.nodes) {
    if (question.hosts.size() < kMostNames) question.hosts.push_back(node.hello.host);
  }
  const auto answers =
      desk.ask(Questions(result.nodes.size(), DoctorContent(question)), kNamesLimit);
  for (const auto& answer : answers) {
    auto names = as<NamesAnswer>(answer);
    if (names && names->names.size() != question.hosts.size()) names.reset();
    result.names.push_back(std::move(names));
  }
}

bool has_address(const DeskNode& node, const std::string& address) {
  return std::ranges::any_of(node.hello.listeners,
                             [&](const ProbeListener& each) { return each.address == address; });
}

bool shares_network(const DeskNode& node, const ProbeListener& other) {
  const auto there = IpAddress::parse(other.address);
  return there && std::ranges::any_of(node.hello.listeners, [&](const ProbeListener& each) {
           const auto here = IpAddress::parse(each.address);
           return here && same_network(*here, *there, each.prefix_bits);
         });
}

// Bridges of containers have the same address everywhere: that one would be reached at home.
ProbeQuestion question_about(const DeskNode& from, const DeskNode& to) {
  ProbeQuestion question{.id = to.hello.id};
  for (const ProbeListener& each : to.hello.listeners) {
    const bool main = each.address == to.main_address;
    if (!main && has_address(from, each.address)) continue;
    question.targets.push_back({.address = each.address,
                                .port = each.port,
                                .measure = main || shares_network(from, each)});
  }
  return question;
}

void take_ways(const ProbeQuestion& question, const std::optional<ProbeAnswer>& answer, int from,
               int to, const std::string& main_address, std::vector<PairResult>& pairs) {
  if (!answer || answer->ways.size() != question.targets.size()) return;
  for (std::size_t at = 0; at < question.targets.size(); ++at) {
    const ProbeAnswer::Way& way = answer->ways[at];
    pairs.push_back({.from = from,
                     .to = to,
                     .address = question.targets[at].address,
                     .main = question.targets[at].address == main_address,
                     .on_common_network = question.targets[at].measure,
                     .problem = way.problem,
                     .latency_us = way.latency_us,
                     .least_latency_us = way.least_latency_us,
                     .bytes_per_second = way.bytes_per_second,
                     .path_mtu = way.path_mtu,
                     .stalled = way.stalled});
  }
}

void measure_round(DoctorDesk& desk, const PairRound& round, bool back, Examination& result) {
  Questions questions(result.nodes.size());
  std::vector<ProbeQuestion> asked(result.nodes.size());
  for (const auto& [one, other] : round) {
    const auto from = static_cast<std::size_t>(back ? other : one);
    const auto to = static_cast<std::size_t>(back ? one : other);
    asked[from] = question_about(result.nodes[from], result.nodes[to]);
    questions[from] = asked[from];
  }
  const auto answers = desk.ask(questions, kProbeLimit);
  for (const auto& [one, other] : round) {
    const int from = back ? other : one;
    const int to = back ? one : other;
    const auto at = static_cast<std::size_t>(from);
    take_ways(asked[at], as<ProbeAnswer>(answers[at]), from, to,
              result.nodes[static_cast<std::size_t>(to)].main_address, result.pairs);
  }
}

void measure_pairs(DoctorDesk& desk, const ExaminationOptions& options, Examination& result) {
  const auto rounds = schedule_pairs(static_cast<int>(result.nodes.size()), options.most_rounds);
  for (std::size_t at = 0; at < rounds.size(); ++at) {
    options.say(concat("measuring pairs, round ", at + 1, " of ", rounds.size()));
    measure_round(desk, rounds[at], /*back=*/false, result);
    measure_round(desk, rounds[at], /*back=*/true, result);
  }
}

void try_shared_folder(DoctorDesk& desk, const std::string& folder, Examination& result) {
  result.shared_folder = folder;
  MarkQuestion mark{.action = MarkAction::write,
                    .name = concat("lockstep-doctor-", to_hex(random_bytes(8))),
                    .text = to_hex(random_bytes(16)),
                    .limit_ms = kVisibleLimitMs};
  const auto limit = milliseconds(kVisibleLimitMs) + kMarkLeeway;
  const auto written = as<MarkAnswer>(desk.ask_one(0, mark, limit));
  if (!written || !written->problem.empty()) {
    result.writer_problem = written ? written->problem : "the first node does not answer";
    return;
  }
  mark.action = MarkAction::look;
  Questions questions(result.nodes.size(), DoctorContent(mark));
  for (const auto& answer : desk.ask(questions, limit)) {
    result.marks.push_back(as<MarkAnswer>(answer));
  }
  mark.action = MarkAction::remove;
  desk.ask_one(0, mark, limit);
}

// The first node hosts it.
std::optional<Endpoint> meeting_point(DoctorDesk& desk, const Examination& result) {
  const auto free = as<PortAnswer>(desk.ask_one(0, PortQuestion{}, kClockLimit));
  if (!free) return std::nullopt;
  return Endpoint{.host = result.nodes[0].main_address, .port = free->port};
}

void try_small_job(DoctorDesk& desk, const ExaminationOptions& options, Examination& result) {
  options.say("running a small job on all nodes");
  SmokeQuestion question{.endpoint = {},
                         .run_id = concat("doctor-", to_hex(random_bytes(4))),
                         .nodes = static_cast<int>(result.nodes.size()),
                         .limit_ms = kSmokeLimitMs};
  if (question.nodes > 1) {
    const auto endpoint = meeting_point(desk, result);
    if (!endpoint) return;  // the node is lost, and that is said
    question.endpoint = endpoint->to_string();
  }
  Questions questions;
  for (const DeskNode& node : result.nodes) {
    question.workers = std::max(question.nodes == 1 ? 2 : 1, node.hello.gpus);
    questions.emplace_back(question);
  }
  for (const auto& answer : desk.ask(questions, milliseconds(kSmokeLimitMs) + kMarkLeeway)) {
    result.smoke.push_back(as<SmokeAnswer>(answer));
  }
}

}  // namespace

Examination examine(DoctorDesk& desk, int wanted_nodes, const ExaminationOptions& options) {
  Examination result;
  result.wanted_nodes = wanted_nodes;
  result.nodes = desk.nodes();
  result.silent = desk.silent();
  measure_clocks(desk, result);
  ask_names(desk, result);
  if (!options.shared_folder.empty()) try_shared_folder(desk, options.shared_folder, result);
  measure_pairs(desk, options, result);
  if (options.smoke) try_small_job(desk, options, result);
  for (std::size_t node = 0; node < result.nodes.size(); ++node) {
    result.nodes[node].lost = desk.nodes()[node].lost;
  }
  return result;
}

}  // namespace lockstep
