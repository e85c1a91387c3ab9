#include <cstdint>
#include <utility>

#include "comm/group_team.h"
#include "comm/messages.h"
#include "lockstep/error.h"

// Ranks of one machine see in its memory what the others call. Between machines the leaders tell
// each other, in a ring: so whoever comes after one that differs, and that one itself, learn it.
// Messages of calls that differ have different tags, and never meet.
namespace lockstep {
namespace {

int tag_of_call(const ShmTeam::Announcement& announced, bool ordered) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::uint64_t mixed = (announced.what * kOdd ^ announced.length) * kOdd;
  mixed ^= mixed >> 32;
  const auto number = static_cast<int>(mixed & ((1 << 27) - 1));
  return kFirstTeamCallTag + (ordered ? 1 << 28 : 0) + 2 * number;
}

}  // namespace

void GroupTeam::begin_call(const ShmTeam::Announcement& announced) {
  call_tag_ = tag_of_call(announced, options_.tag == kOrderedTeamTag);
  if (!leads()) return;
  const int machines = options_.layout.machine_count();
  accord_.mine = announced;
  accord_.received =
      receive(&accord_.theirs, sizeof(accord_.theirs),
              options_.layout.leader((machine() + machines - 1) % machines), options_.tag);
  accord_.sent = send(&accord_.mine, sizeof(accord_.mine),
                      options_.layout.leader((machine() + 1) % machines), options_.tag);
}

void GroupTeam::end_call() {
  check_accord();
  if (accord_.sent) accord_.sent->wait();
  accord_.sent.reset();
}

void GroupTeam::check_accord() {
  if (!accord_.received) return;
  const WorkPtr received = std::exchange(accord_.received, nullptr);
  received->wait();
  if (accord_.theirs == accord_.mine) return;
  const int machines = options_.layout.machine_count();
  const int peer = options_.layout.leader((machine() + machines - 1) % machines);
  throw Error(concat("rank ", rank(), " of the group calls ", ShmTeam::describe(accord_.mine),
                     ", but rank ", peer, " ", ShmTeam::describe(accord_.theirs),
                     "; every rank must call the same operations in the same order"));
}

}  // namespace lockstep
