#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "lockstep/error.h"
#include "shm/bell.h"
#include "shm/mail.h"
#include "shm/mail_message.h"

// How the mail moves bytes; its mutex is held.
namespace lockstep {
namespace {

// What is moved before the other side hears of it: so both copy at the same time.
constexpr std::size_t kPieceBytes = 64 << 10;

}  // namespace

bool ShmMail::make_progress() {
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (int peer = 0; peer < options_.size; ++peer) {
      if (peer == options_.rank) continue;
      again = push(peer) || again;
      again = pull(peer) || again;
    }
    moved = moved || again;
  }
  return moved;
}

bool ShmMail::push(int peer) {
  auto& outbox = outboxes_[static_cast<std::size_t>(peer)];
  if (outbox.empty()) return false;
  const MessagePtr message = outbox.front();
  MailRing& ring = ring_to(peer);
  bool moved = false;
  if (!message->announced) {
    if (ring.room() < sizeof(MailHeader)) return false;
    const MailHeader header{.tag = message->content.tag, .bytes = message->content.bytes};
    ring.write(&header, sizeof(header));
    message->announced = moved = true;
  }
  const std::size_t piece =
      std::min({ring.room(), message->content.bytes - message->moved, kPieceBytes});
  if (piece > 0) {
    ring.write(static_cast<const std::byte*>(message->content.data) + message->moved, piece);
    message->moved += piece;
    moved = true;
  }
  if (moved) bell_of(peer).ring();
  if (message->moved == message->content.bytes) {
    outbox.pop_front();
    finish(message);
    moved = true;
  }
  return moved;
}

bool ShmMail::expects_from(int peer) const {
  return std::ranges::any_of(receives_, [&](const MessagePtr& message) {
    return message->peer == peer || message->peer == kAnyone;
  });
}

// What nobody has asked for stays in the ring, unless it is in the way of something.
bool ShmMail::pull(int peer) {
  Inbox& inbox = inboxes_[static_cast<std::size_t>(peer)];
  MailRing& ring = in_[static_cast<std::size_t>(peer)];
  if (!inbox.target && !expects_from(peer)) return false;
  if (!inbox.open) {
    if (ring.available() < sizeof(MailHeader)) return false;
    open_message(peer, inbox);
  }
  const std::size_t piece =
      std::min({ring.available(), static_cast<std::size_t>(inbox.header.bytes) - inbox.arrived,
                kPieceBytes});
  if (piece == 0 && inbox.arrived < inbox.header.bytes) return false;
  std::byte* to = nullptr;
  if (inbox.target) {
    to = static_cast<std::byte*>(inbox.target->content.data);
  } else if (!inbox.unwanted) {
    to = inbox.kept.data();
  }
  if (piece > 0) ring.read(to == nullptr ? nullptr : to + inbox.arrived, piece);
  inbox.arrived += piece;
  bell_of(peer).ring();
  if (inbox.arrived == inbox.header.bytes) close_message(peer, inbox);
  return true;
}

void ShmMail::open_message(int peer, Inbox& inbox) {
  in_[static_cast<std::size_t>(peer)].read(&inbox.header, sizeof(inbox.header));
  inbox.open = true;
  inbox.arrived = 0;
  inbox.unwanted = false;
  inbox.target = find_receive(peer, inbox.header.tag);
  if (!inbox.target) {
    inbox.kept.resize(inbox.header.bytes);
    return;
  }
  receives_.remove(inbox.target);
  fill(inbox.target, peer, inbox.header.bytes);
}

void ShmMail::close_message(int peer, Inbox& inbox) {
  inbox.open = false;
  if (inbox.target) return finish(std::exchange(inbox.target, nullptr));
  if (inbox.unwanted) return;
  inbox.waiting.push_back({.tag = inbox.header.tag, .bytes = std::exchange(inbox.kept, {})});
  // Somebody may have asked for it meanwhile.
  if (const MessagePtr receive = find_receive(peer, inbox.header.tag)) {
    receives_.remove(receive);
    take_kept(receive);
  }
}

ShmMail::MessagePtr ShmMail::find_receive(int peer, std::uint32_t tag) {
  for (const MessagePtr& message : receives_) {
    const bool from_there = message->peer == peer || message->peer == kAnyone;
    if (from_there && message->content.tag == tag) return message;
  }
  return nullptr;
}

// Decides whom a receive gets its bytes from; false where it expects others.
bool ShmMail::fill(const MessagePtr& receive, int peer, std::size_t bytes) {
  receive->peer = peer;
  if (bytes == receive->content.bytes) return true;
  fail(receive, concat("recv: rank ", peer, " of this machine sends ", bytes, " bytes to rank ",
                       options_.rank, ", which expects ", receive->content.bytes));
  return false;
}

bool ShmMail::take_kept(const MessagePtr& receive) {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (receive->peer != peer && receive->peer != kAnyone) continue;
    auto& waiting = inboxes_[static_cast<std::size_t>(peer)].waiting;
    const auto found = std::ranges::find(waiting, receive->content.tag, &Inbox::Kept::tag);
    if (found == waiting.end()) continue;
    if (fill(receive, peer, found->bytes.size())) {
      if (!found->bytes.empty()) {
        std::memcpy(receive->content.data, found->bytes.data(), found->bytes.size());
      }
      finish(receive);
    }
    waiting.erase(found);
    return true;
  }
  return false;
}

void ShmMail::finish(const MessagePtr& message) {
  if (message->content.arrived) message->content.arrived();
  message->ended = true;
  message->content.owner = nullptr;
  message->content.arrived = nullptr;
  --pending_;
  changed_.notify_all();
}

// By value: whoever holds it lets it go in here.
void ShmMail::fail(MessagePtr message, const std::string& reason) {
  message->error = std::make_exception_ptr(std::runtime_error(reason));
  forget(message);
  message->ended = true;
  message->content.owner = nullptr;
  message->content.arrived = nullptr;
  --pending_;
  changed_.notify_all();
}

// Of a message that is partly there the rest can never be told from the next one.
void ShmMail::forget(const MessagePtr& message) {
  receives_.remove(message);
  for (auto& outbox : outboxes_) std::erase(outbox, message);
  for (auto& inbox : inboxes_) {
    if (inbox.target != message) continue;
    inbox.target = nullptr;
    inbox.unwanted = true;
  }
}

std::vector<ShmMail::MessagePtr> ShmMail::all_pending() const {
  std::vector<MessagePtr> all(receives_.begin(), receives_.end());
  for (const auto& outbox : outboxes_) all.insert(all.end(), outbox.begin(), outbox.end());
  for (const auto& inbox : inboxes_) {
    if (inbox.target) all.push_back(inbox.target);
  }
  return all;
}

}  // namespace lockstep
