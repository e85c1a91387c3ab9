// The network over which the nodes of a job reach each other, before they begin.
#include <algorithm>

#include "launch/coordinator.h"
#include "launch/ip_address.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

// A node may be lost, or its network mended, between two looks; so one alone decides nothing.
constexpr int kMostSurveys = 3;
constexpr Time kSurveyPause = std::chrono::seconds(1);
constexpr std::size_t kMostSilentNamed = 16;

bool is_loopback(const std::string& text) {
  const auto address = IpAddress::parse(text);
  return address && address->is_loopback();
}

}  // namespace

bool Coordinator::needs_survey(const std::vector<NodeInfo>& nodes) const {
  if (!options_.surveys_network || nodes.size() < 2) return false;
  visit(nodes.size());
  const auto stays_here = [](const NodeInfo& node) { return is_loopback(node.address); };
  const auto is_settled = [&](const NodeInfo& node) {
    return !nodes_.at(node.id).network_address.empty();
  };
  return !std::ranges::all_of(nodes, stays_here) && !std::ranges::all_of(nodes, is_settled);
}

bool Coordinator::network_is_settled(const std::vector<NodeInfo>& nodes) {
  if (surveys()) return false;
  if (!needs_survey(nodes)) return true;
  visit(nodes.size());
  std::vector<NetworkSurvey::Member> members;
  for (const NodeInfo& node : nodes) {
    members.push_back(
        {.id = node.id, .host = node.host, .settled = nodes_.at(node.id).network_address});
  }
  survey_.emplace(next_round_, std::move(members));
  next_round_ += NetworkSurvey::kRounds;
  ask_about_network();
  return false;
}

void Coordinator::ask_about_network() {
  // Who is silent for so long is lost; the rest is for those that hear and do not answer.
  survey_deadline_ = now_ + options_.terms.beat_limit + std::chrono::seconds(4);
  visit(survey_->members().size());
  for (const NetworkSurvey::Member& member : survey_->members()) {
    if (const auto question = survey_->question(member.id)) send(nodes_.at(member.id), *question);
  }
}

// A survey is about these nodes and these connections.
void Coordinator::give_up_survey_with(const std::string& id) {
  if (!survey_ || !survey_->has(id)) return;
  survey_.reset();
  failed_surveys_ = 0;
}

void Coordinator::handle(Node& node, const Addresses& answer) {
  if (survey_ && survey_->on_answer(node.info.id, answer)) continue_survey();
}

void Coordinator::handle(Node& node, const Probed& answer) {
  if (survey_ && survey_->on_answer(node.info.id, answer)) continue_survey();
}

void Coordinator::continue_survey() {
  const std::optional<NetworkChoice> choice = survey_->choice();  // it outlives the survey
  if (!choice) return ask_about_network();
  if (choice->addresses.empty()) return survey_failed(choice->text);
  actions_.push_back(Say{choice->text});
  const std::vector<std::string> addresses = survey_->chosen();
  visit(addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    Node& node = nodes_.at(survey_->members()[i].id);
    node.network_address = node.info.address = addresses[i];
  }
  survey_.reset();
  failed_surveys_ = 0;
  gather();
}

void Coordinator::survey_failed(const std::string& reason) {
  const std::vector<NetworkSurvey::Member> members = survey_->members();
  survey_.reset();
  if (++failed_surveys_ < kMostSurveys) {
    survey_again_at_ = now_ + kSurveyPause;
    return;
  }
  // A job that may change its size goes on without who does not reach the others.
  const auto is_new = [](const NetworkSurvey::Member& member) { return member.settled.empty(); };
  if (!options_.terms.elastic() || std::ranges::all_of(members, is_new)) return finish(1, reason);
  failed_surveys_ = 0;
  for (const NetworkSurvey::Member& member : members) {
    if (!is_new(member)) continue;
    Node& node = nodes_.at(member.id);
    actions_.push_back(
        Say{concat("refused ", node.info.host, " (", node.info.address, "): ", reason)});
    send(node, Refused{reason});
    forget(node);
  }
  gather();
}

void Coordinator::survey_if_due() {
  if (phase_ != Phase::gathering) return;
  if (survey_again_at_ && now_ >= *survey_again_at_) {
    survey_again_at_.reset();
    gather();
  } else if (survey_ && now_ >= survey_deadline_) {
    survey_failed(concat("no answer from ", join_words(survey_->silent(), kMostSilentNamed),
                         " to questions about the network; look at what "
                         "lockstep run says there"));
  }
}

}  // namespace lockstep
