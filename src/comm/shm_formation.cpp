#include "comm/shm_formation.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "comm/process_watch.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

class NotWanted : public Error {
 public:
  explicit NotWanted(const std::string& reason) : Error(kNotWanted + reason) {}
};

// Throws if this rank cannot or shall not share memory.
void check_willing(const std::vector<int>& ranks) {
  if (!may_share_memory()) throw NotWanted("LOCKSTEP_SHM is 0");
  if (static_cast<int>(ranks.size()) > ShmTeam::kMostRanks) {
    throw Error(concat(ranks.size(), " ranks are on one machine; more than ", ShmTeam::kMostRanks,
                       " cannot share memory"));
  }
}

std::shared_ptr<ProcessWatch> watch_others(const GroupImpl& group, const std::vector<int>& ranks) {
  std::vector<PeerIdentity> others;
  for (const int rank : ranks) {
    if (rank != group.rank) others.push_back(group.peers->identity(group.global_ranks[rank]));
  }
  return std::make_shared<ProcessWatch>(others);
}

struct LocalTeam {
  std::unique_ptr<ShmTeam> team;
  std::unique_ptr<ShmMail> mail;
  std::string refusal;  // empty: agreed. The first rank of a machine knows it
};

struct LocalNeeds {
  bool one_machine = false;
  bool mail = false;
};

LocalTeam form_local_team(const GroupImpl& group, const Circle& here, const LocalNeeds& needs) {
  std::shared_ptr<ProcessWatch> watch;
  // The mail is behind the team, at the beginning of a cache line.
  const std::size_t team_bytes = (ShmTeam::bytes_needed(here.size()) + 63) / 64 * 64;
  const std::size_t mail_bytes = needs.mail ? ShmMail::bytes_needed(here.size()) : 0;
  AgreedSegment agreed = agree_on_segment(here, team_bytes + mail_bytes,
                                          ShmTeam::own_range(here.place(), here.size()), [&] {
                                            check_willing(here.ranks);
                                            watch = watch_others(group, here.ranks);
                                          });
  LocalTeam local{.team = nullptr, .mail = nullptr, .refusal = agreed.refusal};
  if (!agreed.segment || !watch) return local;
  const auto segment = std::make_shared<const SharedSegment>(std::move(*agreed.segment));
  local.team = std::make_unique<ShmTeam>(
      segment, ShmTeam::Options{.rank = here.place(),
                                .size = here.size(),
                                .timeout = group.timeout,
                                .peer_ended = [watch] { return watch->any_ended(); },
                                .blocks = needs.one_machine ? group.blocks : nullptr});
  if (!needs.mail) return local;
  const auto ended = [watch, me = here.place()](int peer) {
    return peer != me && watch->has_ended(static_cast<std::size_t>(peer < me ? peer : peer - 1));
  };
  local.mail = std::make_unique<ShmMail>(
      segment, team_bytes,
      ShmMail::Options{.rank = here.place(), .size = here.size(), .peer_ended = ended});
  return local;
}

void say_refusal(const GroupImpl& group, const ShmUse& use, const std::string& reason) {
  if (group.rank != 0 || std::getenv("LOCKSTEP_QUIET")) return;
  if (reason.starts_with(kNotWanted) && !use.insisted) return;
  std::fprintf(stderr, "lockstep: group %s: %s over TCP and not through shared memory: %s\n",
               group.name.c_str(), use.what, without_mark(reason).c_str());
}

}  // namespace

Circle circle_of_all(const GroupImpl& group, const c10::intrusive_ptr<c10d::Backend>& gloo,
                     int tag) {
  Circle circle{.gloo = gloo, .tag = tag, .rank = group.rank, .ranks = {}, .names = {}};
  circle.ranks.resize(group.global_ranks.size());
  std::iota(circle.ranks.begin(), circle.ranks.end(), 0);
  circle.names = group.global_ranks;
  return circle;
}

std::variant<RankLayout, std::string> find_layout(const GroupImpl& group) {
  std::vector<std::string> machines;
  for (const int rank : group.global_ranks) {
    // A rank that is no lockstep program would not answer.
    if (!group.peers->knows(rank)) return concat("rank ", rank, " is not a lockstep program");
    machines.push_back(group.peers->identity(rank).machine);
  }
  const auto layout = RankLayout::of(machines);
  if (!layout) return kNotWanted + "the ranks of a machine do not follow each other";
  if (layout->all_alone() && group.size() > 1) {
    return kNotWanted + "every rank is on another machine or in a container";
  }
  return *layout;
}

std::unique_ptr<GroupTeam> form_group_team(const GroupImpl& group,
                                           const c10::intrusive_ptr<c10d::Backend>& gloo, int tag,
                                           const ShmUse& use) {
  const auto found = find_layout(group);
  if (const auto* reason = std::get_if<std::string>(&found)) {
    say_refusal(group, use, *reason);
    return nullptr;
  }
  const auto& layout = std::get<RankLayout>(found);
  const int machine = layout.machine_of[group.rank];
  const Circle all = circle_of_all(group, gloo, tag);
  Circle here = all;
  here.ranks = layout.machines[machine];
  here.names.clear();
  for (const int rank : here.ranks) here.names.push_back(group.global_ranks[rank]);
  LocalTeam local;
  if (here.ranks.size() > 1 || layout.machine_count() == 1) {
    local = form_local_team(group, here,
                            {.one_machine = layout.machine_count() == 1, .mail = use.mail});
  } else {
    try {
      check_willing(here.ranks);
    } catch (const Error& error) {
      local.refusal = error.what();
    }
  }

  // All machines or none.
  // What only others do not want is told.
  std::string refusal = local.refusal;
  for (const std::string& each : all.to_first(local.refusal)) {
    if (refusal.empty()) refusal = without_mark(each);
  }
  refusal = all.from_first(refusal);
  if (!refusal.empty()) {
    say_refusal(group, use, refusal);
    return nullptr;
  }
  std::unique_ptr<GroupTeam> team;
  const auto close = [sockets = group.sockets] {
    if (sockets) sockets->shut_down();
  };
  if (layout.machine_count() == 1) {
    team = std::make_unique<GroupTeam>(std::move(local.team));
  } else {
    team = std::make_unique<GroupTeam>(
        GroupTeam::Options{
            .rank = group.rank, .layout = layout, .gloo = gloo, .tag = use.tag, .close = close},
        std::move(local.team));
  }
  team->set_mail(std::move(local.mail));
  return team;
}

}  // namespace lockstep
