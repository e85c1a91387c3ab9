#pragma once

#include "shm/mail.h"

// For the mail's own sources.
namespace lockstep {

class ShmMail::Message {
 public:
  Message(int peer_, bool sends_, Content content_)
      : peer(peer_), sends(sends_), content(std::move(content_)) {}

  int peer;  // of a receive from anyone: whom it came from, as soon as something has
  bool sends;
  Content content;
  bool announced = false;  // the header is in the ring
  std::size_t moved = 0;
  bool ended = false;
  std::exception_ptr error;
};

}  // namespace lockstep
