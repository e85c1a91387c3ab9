#include <cstring>
#include <vector>

#include "comm/group_team_parts.h"

// What has to reach another machine in any case: ranks of one machine hand it to each other in
// memory, and those of two write to each other.
namespace lockstep {
namespace {

template <typename Each>
std::vector<Each> ranks_here(const std::vector<Each>& of_all, int first, std::size_t count) {
  if (of_all.empty()) return {};
  const auto begin = of_all.begin() + first;
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

void copy_own(const void* from, void* to, std::size_t bytes) {
  if (bytes > 0 && from != to) std::memmove(to, from, bytes);
}

}  // namespace

/// Messages with ranks of other machines, waited for together.
class GroupTeam::Mailing {
 public:
  explicit Mailing(GroupTeam& team) : team_(team) {}

  void send(ConstBytes data, int peer) {
    if (data.size > 0) works_.push_back(team_.send(data.data, data.size, peer, team_.call_tag_));
  }
  void receive(Bytes data, int peer) {
    if (data.size > 0) works_.push_back(team_.receive(data.data, data.size, peer, team_.call_tag_));
  }
  void wait() {
    for (const auto& work : works_) team_.await(work);
  }

  /// Others, nobody the same one at the same time.
  template <typename Visit>
  void each_far_rank(Visit visit) const {
    for (int step = 1; step < team_.size(); ++step) {
      const int peer = (team_.rank() + step) % team_.size();
      if (!team_.is_here(peer)) visit(peer);
    }
  }

 private:
  GroupTeam& team_;
  std::vector<WorkPtr> works_;
};

void GroupTeam::gather(ConstBytes input, const std::vector<void*>& outputs, int root) {
  if (one_machine()) return here_->gather(input, outputs, root);
  call(ShmTeam::announcement(ShmTeam::Kind::gather, input.size, root), [&] {
    Mailing mailing(*this);
    if (rank() == root) {
      mailing.each_far_rank([&](int peer) {
        mailing.receive({outputs[static_cast<std::size_t>(peer)], input.size}, peer);
      });
    }
    if (!is_here(root)) {
      mailing.send(input, root);
    } else if (here_) {
      here_->gather(input, ranks_here(outputs, first_here(), ranks_of(machine()).size()),
                    place_of(root));
    } else {
      copy_own(input.data, outputs[static_cast<std::size_t>(root)], input.size);
    }
    mailing.wait();
  });
}

void GroupTeam::scatter(const std::vector<const void*>& inputs, Bytes output, int root) {
  if (one_machine()) return here_->scatter(inputs, output, root);
  call(ShmTeam::announcement(ShmTeam::Kind::scatter, output.size, root), [&] {
    Mailing mailing(*this);
    if (rank() == root) {
      mailing.each_far_rank([&](int peer) {
        mailing.send({inputs[static_cast<std::size_t>(peer)], output.size}, peer);
      });
    }
    if (!is_here(root)) {
      mailing.receive(output, root);
    } else if (here_) {
      here_->scatter(ranks_here(inputs, first_here(), ranks_of(machine()).size()), output,
                     place_of(root));
    } else {
      copy_own(inputs[static_cast<std::size_t>(root)], output.data, output.size);
    }
    mailing.wait();
  });
}

void GroupTeam::all_to_all(const std::vector<ConstBytes>& inputs,
                           const std::vector<Bytes>& outputs) {
  if (one_machine()) return here_->all_to_all(inputs, outputs);
  // Every rank has sizes of its own.
  call(ShmTeam::announcement(ShmTeam::Kind::all_to_all, 0), [&] {
    Mailing mailing(*this);
    mailing.each_far_rank(
        [&](int peer) { mailing.receive(outputs[static_cast<std::size_t>(peer)], peer); });
    mailing.each_far_rank(
        [&](int peer) { mailing.send(inputs[static_cast<std::size_t>(peer)], peer); });
    const std::size_t count = ranks_of(machine()).size();
    if (here_) {
      here_->all_to_all(ranks_here(inputs, first_here(), count),
                        ranks_here(outputs, first_here(), count));
    } else {
      const auto own = static_cast<std::size_t>(rank());
      copy_own(inputs[own].data, outputs[own].data, outputs[own].size);
    }
    mailing.wait();
  });
}

}  // namespace lockstep
