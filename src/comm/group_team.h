#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/rank_layout.h"
#include "shm/mail.h"
#include "shm/team.h"

namespace lockstep {

/// The ranks of a group as they work together: through shared memory on each machine, and, where
/// there are several, by messages between one rank of each (its leader, the first).
///
/// Reductions are in rank order, element by element, however ranks are spread: the first machine
/// hands its sums to the second, which goes on adding, and so on; the last one has the result and
/// hands it back the same way. That takes no more bytes than a ring of the leaders does. Tensors
/// pass in chunks, so that all machines and links work at the same time.
///
/// An exception ends the team on all machines. One thread at a time, the same calls in the same
/// order on every rank; poison() is thread-safe.
class GroupTeam {
 public:
  using Bytes = ShmTeam::Bytes;
  using ConstBytes = ShmTeam::ConstBytes;

  /// All ranks are on one machine.
  explicit GroupTeam(std::unique_ptr<ShmTeam> here);

  struct Options {
    int rank = 0;
    RankLayout layout;
    c10::intrusive_ptr<c10d::Backend> gloo;  // for messages between ranks of the group
    int tag = 0;                             // kBackendTeamTag or kOrderedTeamTag
    std::function<void()> close;  // ends the connections, so that others learn of a failure
  };
  /// `here` is null for a rank that is alone on its machine.
  GroupTeam(Options options, std::unique_ptr<ShmTeam> here);

  bool one_machine() const { return options_.layout.machine_count() <= 1; }
  int rank() const { return options_.rank; }
  int size() const { return static_cast<int>(options_.layout.machine_of.size()); }

  // As in ShmTeam.
  void barrier();
  void all_reduce(void* data, std::int64_t count, const ReduceSpec& spec);
  void reduce(void* data, std::int64_t count, const ReduceSpec& spec, int root);
  void reduce_scatter(const std::vector<const void*>& inputs, void* out, std::int64_t count,
                      const ReduceSpec& spec);
  void broadcast(Bytes data, int root);
  void all_gather(ConstBytes input, const std::vector<void*>& outputs);
  void gather(ConstBytes input, const std::vector<void*>& outputs, int root);
  void scatter(const std::vector<const void*>& inputs, Bytes output, int root);
  void all_to_all(const std::vector<ConstBytes>& inputs, const std::vector<Bytes>& outputs);

  /// Messages between two ranks of this machine; null where there are none of them. Thread-safe,
  /// and in no order with the calls above.
  ShmMail* mail() const { return mail_.get(); }
  void set_mail(std::unique_ptr<ShmMail> mail) { mail_ = std::move(mail); }
  /// Whether messages between this rank and `peer`, another one, go through memory.
  bool has_mail_with(int peer) const;
  /// Its number among the ranks of its machine.
  int place_of(int peer) const { return options_.layout.place(peer); }
  /// The group's rank that has this number on this rank's machine.
  int rank_at(int place) const { return first_here() + place; }

  void set_busy_core(bool busy);
  void set_timeout(std::chrono::milliseconds timeout);
  void poison();

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  class ReduceStream;
  class Mailing;

  /// Elements of all ranks that are combined, and who gets the result.
  struct Segment {
    const void* in = nullptr;
    void* out = nullptr;  // may be `in`; null where this rank does not get the result
    std::int64_t count = 0;
    int root = kEveryone;
  };
  static constexpr int kEveryone = -1;

  /// A call between machines: its leaders tell each other what they are about to do.
  template <typename Body>
  void call(const ShmTeam::Announcement& announced, Body body);
  void begin_call(const ShmTeam::Announcement& announced);
  void end_call();
  /// Throws if the machine before this one does something else.
  void check_accord();
  /// Before anything is waited for that may never come, it is known whether it will.
  void await(const WorkPtr& work) {
    check_accord();
    work->wait();
  }

  void reduce_segments(const std::vector<Segment>& segments, const ReduceSpec& spec);
  /// Of little data: everybody gets all of it and adds by itself.
  void all_reduce_small(void* data, std::int64_t count, const ReduceSpec& spec);
  void meet_leaders();
  void gather_blocks(ConstBytes input, const std::vector<void*>& outputs);

  int machine() const { return options_.layout.machine_of[static_cast<std::size_t>(rank())]; }
  int first_here() const { return options_.layout.leader(machine()); }
  bool leads() const { return first_here() == rank(); }
  bool is_here(int peer) const {
    return options_.layout.machine_of[static_cast<std::size_t>(peer)] == machine();
  }
  const std::vector<int>& ranks_of(int machine) const {
    return options_.layout.machines[static_cast<std::size_t>(machine)];
  }
  WorkPtr send(const void* data, std::size_t bytes, int peer, int tag);
  WorkPtr receive(void* data, std::size_t bytes, int peer, int tag);

  /// A piece of an all-gather, of each rank's block the same.
  struct BlockExchange {
    std::size_t offset = 0, bytes = 0;
    std::size_t slot = 0;         // of the memory that it passes through
    std::vector<WorkPtr> coming;  // from the machine before, the one before that, ...
    std::vector<WorkPtr> sent;
  };
  Bytes block_of(const BlockExchange& exchange, int machine);
  template <typename Move>
  void each_part(const BlockExchange& exchange, int machine, const std::vector<void*>& outputs,
                 Move move);
  void start_exchange(BlockExchange& exchange, const std::vector<void*>& outputs);
  void finish_exchange(BlockExchange& exchange, const std::vector<void*>& outputs);

  /// Memory of so many bytes that is kept for the next call.
  std::byte* scratch(std::size_t index, std::size_t bytes);

  Options options_;
  std::unique_ptr<ShmTeam> here_;
  std::unique_ptr<ShmMail> mail_;
  std::deque<std::vector<std::byte>> scratch_;

  struct Accord {
    ShmTeam::Announcement mine, theirs;
    WorkPtr sent, received;  // null: it has been looked at
  };
  Accord accord_;
  int call_tag_ = 0;  // of the call's messages; results have the one after it
};

}  // namespace lockstep
