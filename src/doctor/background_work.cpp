#include "doctor/background_work.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <mutex>
#include <thread>
#include <vector>

#include "core/unique_fd.h"
#include "lockstep/error.h"

namespace lockstep {

struct BackgroundWork::Done {
  UniqueFd ready;
  std::mutex mutex;
  std::vector<Then> list;
};

BackgroundWork::BackgroundWork(EventLoop& loop) : loop_(loop), done_(std::make_shared<Done>()) {
  done_->ready = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!done_->ready) throw_errno("eventfd");
  loop_.watch(done_->ready.get(), EPOLLIN, [this](std::uint32_t) { on_done(); });
}

BackgroundWork::~BackgroundWork() {
  loop_.unwatch(done_->ready.get());
}

void BackgroundWork::start(std::function<Then()> work) {
  std::thread([done = done_, work = std::move(work)] {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    Then then = work();
    const std::lock_guard lock(done->mutex);
    done->list.push_back(std::move(then));
    ::eventfd_write(done->ready.get(), 1);
  }).detach();
}

void BackgroundWork::on_done() {
  eventfd_t count = 0;
  ::eventfd_read(done_->ready.get(), &count);
  std::vector<Then> list;
  {
    const std::lock_guard lock(done_->mutex);
    list.swap(done_->list);
  }
  for (const Then& then : list) then();
}

}  // namespace lockstep
