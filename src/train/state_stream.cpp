#include "train/state_stream.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "comm/group_impl.h"
#include "comm/process_watch.h"
#include "comm/shm_ring.h"
#include "core/checksum.h"
#include "lockstep/error.h"
#include "train/state_transfer.h"
#include "train/tensor_bytes.h"

namespace lockstep {
namespace {

constexpr std::size_t kMessagesInFlight = 4;
constexpr std::size_t kBlockBytes =
    kChunkBytes + sizeof(std::uint64_t);  // a chunk and its checksum
constexpr int kTag = 1;
constexpr std::int64_t kTextBytes = 256;

std::vector<std::string> machines_of(const ProcessGroup& group) {
  const GroupImpl& impl = *group.impl();
  std::vector<std::string> machines;
  for (const int rank : impl.global_ranks) {
    machines.push_back(impl.peers->knows(rank) ? impl.peers->identity(rank).machine : "");
  }
  return machines;
}

bool same_machine(const std::vector<std::string>& machines, int one, int other) {
  const std::string& name = machines.at(static_cast<std::size_t>(one));
  return !name.empty() && name == machines.at(static_cast<std::size_t>(other));
}

void seal(std::byte* block, std::size_t size) {
  const std::uint64_t sum = checksum_of({block, size});
  std::memcpy(block + kChunkBytes, &sum, sizeof(sum));
}

bool is_intact(const std::byte* block, std::size_t size) {
  std::uint64_t sum = 0;
  std::memcpy(&sum, block + kChunkBytes, sizeof(sum));
  return sum == checksum_of({block, size});
}

/// The chunks of a stream.
struct Chunks {
  std::size_t bytes = 0;

  std::size_t count() const { return (bytes + kChunkBytes - 1) / kChunkBytes; }
  std::size_t size(std::size_t chunk) const {
    return std::min(kChunkBytes, bytes - chunk * kChunkBytes);
  }
};

/// One rank's part in a transfer.
class Side {
 public:
  Side(ProcessGroup& group, const Transfer& transfer)
      : group_(group), machines_(machines_of(group)), chunks_{transfer.bytes} {}

 protected:
  // The message is kept until this object's end.
  Work send_text(const std::string& text, int peer) {
    at::Tensor message = at::zeros({kTextBytes}, at::kByte);
    std::memcpy(message.mutable_data_ptr(), text.data(),
                std::min<std::size_t>(text.size(), kTextBytes - 1));
    texts_.push_back(message.to(device()));
    return group_.isend(texts_.back(), {.peer = peer, .tag = kTag});
  }

  std::string receive_text(int peer) {
    const at::Tensor message = at::zeros({kTextBytes}, at::kByte).to(device());
    group_.recv(message, {.peer = peer, .tag = kTag});
    return static_cast<const char*>(message.cpu().const_data_ptr());
  }

  // Bad news of processes that are waited for in shared memory ends the group, as bad news from
  // Gloo does, in words that GroupGuard knows.
  ShmRing::Check check_of(const std::vector<int>& peers) {
    std::vector<PeerIdentity> identities;
    for (const int peer : peers) {
      const int rank = group_.impl()->global_ranks.at(static_cast<std::size_t>(peer));
      identities.push_back(group_.impl()->peers->identity(rank));
    }
    const auto watch = std::make_shared<ProcessWatch>(identities);
    return [this, watch] {
      GroupGuard& guard = *group_.impl()->guard;
      guard.check_usable("state transfer");
      if (!watch->any_ended()) return;
      guard.rethrow(std::make_exception_ptr(
                        std::runtime_error("remote process exited (seen in shared memory)")),
                    "state transfer");
    };
  }

  c10::Device device() const { return group_.impl()->small_device(); }

  ProcessGroup& group_;
  std::vector<std::string> machines_;
  Chunks chunks_;

 private:
  std::deque<at::Tensor> texts_;
};

const std::string kYes = "yes";
const std::string kNo = "no";

class Sender : public Side {
 public:
  Sender(ProcessGroup& group, const Transfer& transfer) : Side(group, transfer) {
    for (const int taker : transfer.takers) {
      std::vector<int> senders = senders_to(taker, transfer.givers, machines_, transfer.bytes);
      if (std::ranges::find(senders, group.rank()) == senders.end()) continue;
      const bool here = same_machine(machines_, group.rank(), taker);
      (here ? near_ : far_).push_back({taker, std::move(senders)});
    }
    offer_memory();
  }

  void send(const std::vector<at::Tensor>& tensors) {
    TensorBytes bytes(tensors);
    for (std::size_t chunk = 0; chunk < chunks_.count(); ++chunk) {
      const std::size_t size = chunks_.size(chunk);
      // Those that are near have the same senders.
      const bool through_memory = ring_ && wants(near_.front(), chunk);
      std::vector<int> takers;
      for (const Taker& taker : far_) {
        if (wants(taker, chunk)) takers.push_back(taker.rank);
      }
      if (through_memory) {
        std::byte* block = ring_->begin_write(check_);
        bytes.read(block, size);
        seal(block, size);
        if (!takers.empty()) std::memcpy(next_message(), block, kBlockBytes);
        ring_->end_write();
      } else if (!takers.empty()) {
        std::byte* block = next_message();
        bytes.read(block, size);
        seal(block, size);
      } else {
        bytes.skip(size);
      }
      if (!takers.empty()) send_message(takers);
    }
    while (!in_flight_.empty()) finish_oldest();
  }

 private:
  struct Taker {
    int rank = 0;
    std::vector<int> senders;
  };
  struct Sent {
    at::Tensor block;    // on the CPU
    at::Tensor message;  // where messages live
    std::vector<Work> works = {};
  };

  bool wants(const Taker& taker, std::size_t chunk) const {
    return taker.senders.at(chunk % taker.senders.size()) == group_.rank();
  }

  // Where one of them cannot map it, all get messages.
  void offer_memory() {
    if (near_.empty()) return;
    std::vector<int> readers;
    for (const Taker& taker : near_) readers.push_back(taker.rank);
    std::string text = kNo;
    try {
      if (!may_share_memory()) throw Error("LOCKSTEP_SHM is 0");
      check_ = check_of(readers);
      ring_.emplace(ShmRing::create(
          {.block_bytes = kBlockBytes, .readers = static_cast<int>(readers.size())}));
      text = ring_->offer().to_text();
    } catch (const Error&) {
      ring_.reset();
    }
    std::vector<Work> works;
    for (std::size_t i = 0; i < readers.size(); ++i) {
      works.push_back(
          send_text(ring_ ? concat(i, " ", readers.size(), " ", text) : kNo, readers[i]));
    }
    bool agreed = ring_.has_value();
    for (const int reader : readers) agreed = receive_text(reader) == kYes && agreed;
    for (const int reader : readers) works.push_back(send_text(agreed ? kYes : kNo, reader));
    for (Work& work : works) work.wait();
    if (agreed) return ring_->close_offer();
    ring_.reset();
    std::ranges::move(near_, std::back_inserter(far_));
    near_.clear();
  }

  std::byte* next_message() {
    at::Tensor block;
    if (in_flight_.size() == kMessagesInFlight) {
      block = in_flight_.front().block;
      finish_oldest();
    } else {
      block = at::zeros({static_cast<std::int64_t>(kBlockBytes)}, at::kByte);
    }
    in_flight_.push_back({.block = block, .message = {}});
    return static_cast<std::byte*>(block.mutable_data_ptr());
  }

  void send_message(const std::vector<int>& takers) {
    Sent& sent = in_flight_.back();
    sent.message = sent.block.to(device());
    for (const int taker : takers) {
      sent.works.push_back(group_.isend(sent.message, {.peer = taker, .tag = kTag}));
    }
  }

  void finish_oldest() {
    for (Work& work : in_flight_.front().works) work.wait();
    in_flight_.pop_front();
  }

  std::vector<Taker> near_, far_;
  std::optional<ShmRing> ring_;  // to all that are near
  ShmRing::Check check_;
  std::deque<Sent> in_flight_;
};

class Receiver : public Side {
 public:
  Receiver(ProcessGroup& group, const Transfer& transfer) : Side(group, transfer) {
    for (const int rank : senders_to(group.rank(), transfer.givers, machines_, transfer.bytes)) {
      senders_.push_back({.rank = rank, .next = senders_.size()});
    }
    if (same_machine(machines_, group.rank(), senders_.front().rank)) take_offers();
  }

  void receive(const std::vector<at::Tensor>& tensors) {
    TensorBytes bytes(tensors);
    for (std::size_t chunk = 0; chunk < chunks_.count(); ++chunk) {
      ask_ahead();
      Sender& sender = senders_.at(chunk % senders_.size());
      const std::size_t size = chunks_.size(chunk);
      const std::byte* block = nullptr;
      at::Tensor message;
      if (sender.ring) {
        block = sender.ring->begin_read(sender.check);
      } else {
        Expected& expected = sender.expected.front();
        expected.work.wait();
        message = expected.message.cpu();
        block = static_cast<const std::byte*>(message.const_data_ptr());
      }
      if (!is_intact(block, size)) {
        throw SystemError(concat("the state that rank ", sender.rank,
                                 " sent was damaged on its way (chunk ", chunk, " of ",
                                 chunks_.count(), ")"));
      }
      bytes.write(block, size);
      if (sender.ring) {
        sender.ring->end_read();
      } else {
        sender.expected.pop_front();
      }
    }
  }

 private:
  struct Expected {
    at::Tensor message;
    Work work;
  };
  struct Sender {
    int rank = 0;
    std::size_t next = 0;  // the chunk to ask it for
    std::optional<ShmRing> ring = std::nullopt;
    ShmRing::Check check = {};
    std::deque<Expected> expected = {};
  };

  void take_offers() {
    std::vector<Work> works;
    for (Sender& sender : senders_) {
      const std::string text = receive_text(sender.rank);
      if (text != kNo) open(sender, text);
      works.push_back(send_text(sender.ring ? kYes : kNo, sender.rank));
    }
    for (Sender& sender : senders_) {
      if (receive_text(sender.rank) != kYes) sender.ring.reset();
    }
    for (Work& work : works) work.wait();
  }

  void open(Sender& sender, const std::string& text) {
    std::istringstream words(text);
    int reader = 0, readers = 0;
    std::string rest;
    std::getline(words >> reader >> readers, rest);
    const SegmentOffer offer = SegmentOffer::parse(rest);
    try {
      if (!may_share_memory()) throw Error("LOCKSTEP_SHM is 0");
      sender.check = check_of({sender.rank});
      sender.ring.emplace(
          ShmRing::open(offer, {.block_bytes = kBlockBytes, .readers = readers}, reader));
    } catch (const Error&) {
      sender.ring.reset();
    }
  }

  // Messages are asked for before they are needed, from each sender on its own.
  void ask_ahead() {
    for (Sender& sender : senders_) {
      if (sender.ring) continue;
      for (; sender.next < chunks_.count() && sender.expected.size() < kMessagesInFlight;
           sender.next += senders_.size()) {
        Expected expected{.message = at::empty({static_cast<std::int64_t>(kBlockBytes)},
                                               at::TensorOptions(at::kByte).device(device())),
                          .work = {}};
        expected.work = group_.irecv(expected.message, {.peer = sender.rank, .tag = kTag});
        sender.expected.push_back(std::move(expected));
      }
    }
  }

  std::vector<Sender> senders_;
};

}  // namespace

std::vector<int> senders_to(int taker, const std::vector<int>& givers,
                            const std::vector<std::string>& machines, std::size_t bytes) {
  std::vector<int> senders;
  for (const int giver : givers) {
    if (same_machine(machines, giver, taker)) senders.push_back(giver);
  }
  if (senders.empty()) senders = givers;
  if (bytes < kSeveralSendersFrom) senders.resize(1);
  return senders;
}

bool sends(int rank, const ProcessGroup& group, const Transfer& transfer) {
  const std::vector<std::string> machines = machines_of(group);
  return std::ranges::any_of(transfer.takers, [&](int taker) {
    const auto senders = senders_to(taker, transfer.givers, machines, transfer.bytes);
    return std::ranges::find(senders, rank) != senders.end();
  });
}

void send_tensors(ProcessGroup& group, const Transfer& transfer,
                  const std::vector<at::Tensor>& tensors) {
  if (transfer.bytes > 0) Sender(group, transfer).send(tensors);
}

void receive_tensors(ProcessGroup& group, const Transfer& transfer,
                     const std::vector<at::Tensor>& tensors) {
  if (transfer.bytes > 0) Receiver(group, transfer).receive(tensors);
}

}  // namespace lockstep
