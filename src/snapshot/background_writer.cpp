#include "snapshot/background_writer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr int kNiceness = 10;

// On Linux these are a thread's own. Refusal changes nothing but the priority.
void lower_priority() {
  ::setpriority(PRIO_PROCESS, 0, kNiceness);
  constexpr int kThisThread = 1, kBestEffort = 2, kLowest = 7, kClassShift = 13;
  ::syscall(SYS_ioprio_set, kThisThread, 0, kBestEffort << kClassShift | kLowest);
}

}  // namespace

BackgroundWriter::~BackgroundWriter() {
  if (!thread_.joinable()) return;
  wait();
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundWriter::start(std::function<void()> job) {
  if (!thread_.joinable()) {
    // The program's signals are for its own threads; and a file that grows beyond the process's
    // limit is then an error of write() and not the signal SIGXFSZ.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  wait();
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
    busy_ = true;
  }
  changed_.notify_all();
}

void BackgroundWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void BackgroundWriter::run() {
  lower_priority();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || busy_; });
    if (ending_) return;
    const std::function<void()> job = std::move(job_);
    lock.unlock();
    job();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace lockstep
