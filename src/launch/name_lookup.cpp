#include "launch/name_lookup.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <thread>

#include "lockstep/error.h"

namespace lockstep {

struct NameLookup::Answer {
  UniqueFd ready;  // an eventfd; written after the rest, so that nothing else needs a lock
  std::vector<IpAddress> addresses;
  std::string reason;
};

namespace {

// Signals are for the threads that expect them.
template <typename Function>
void start_detached(Function function) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread(std::move(function)).detach();
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw SystemError("no thread can be started to look up a name");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

NameLookup::NameLookup(EventLoop& loop, const std::string& host, Found found)
    : loop_(loop),
      found_(std::make_shared<Found>(std::move(found))),
      answer_(std::make_shared<Answer>()) {
  if (const auto numeric = IpAddress::parse(host)) {
    at_once_ = loop_.after(std::chrono::milliseconds(0),
                           [found = found_, address = *numeric] { (*found)({address}, ""); });
    return;
  }
  answer_->ready = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!answer_->ready) throw_errno("eventfd");
  start_detached([answer = answer_, host] {
    answer->addresses = resolve(host, &answer->reason);
    ::eventfd_write(answer->ready.get(), 1);
  });
  loop_.watch(answer_->ready.get(), EPOLLIN, [this](std::uint32_t) { on_answer(); });
}

NameLookup::~NameLookup() {
  loop_.cancel(at_once_);
  if (answer_->ready) loop_.unwatch(answer_->ready.get());
}

void NameLookup::on_answer() {
  eventfd_t count = 0;
  if (::eventfd_read(answer_->ready.get(), &count) != 0) return;
  loop_.unwatch(answer_->ready.get());
  const auto answer = answer_;
  const auto found = found_;
  (*found)(std::move(answer->addresses), answer->reason);
}

}  // namespace lockstep
