#include "launch/console_sink.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <mutex>

#include "launch/signals_blocked.h"
#include "lockstep/error.h"

namespace lockstep {

struct ConsoleSink::State {
  Options options;
  UniqueFd fd;
  bool is_pipe = false;

  std::mutex mutex;
  std::condition_variable changed;
  std::string queue;
  std::string writing;  // taken from the queue; its owner is the thread
  bool busy = false;
  bool stop = false;
  bool ended = false;
  bool broken = false;
  Clock::time_point last_progress = Clock::now();
};

namespace {

// How much to write at once: whole lines as far as they fit. Workers may write to the same pipe,
// and up to PIPE_BUF bytes the kernel keeps together. Elsewhere a bound shows that a slow terminal
// still makes progress.
std::size_t piece_of(std::string_view text, bool is_pipe) {
  const std::size_t limit = is_pipe ? PIPE_BUF : 16 << 10;
  if (text.size() <= limit) return text.size();
  const std::size_t line_end = text.substr(0, limit).rfind('\n');
  return line_end == std::string_view::npos ? limit : line_end + 1;
}

enum class Write { some, again, broken };

Write write_some(int fd, std::string_view& text, bool is_pipe) {
  const ssize_t written = ::write(fd, text.data(), piece_of(text, is_pipe));
  if (written >= 0) {
    text.remove_prefix(static_cast<std::size_t>(written));
    return Write::some;
  }
  if (errno == EINTR) return Write::again;
  if (errno != EAGAIN) return Write::broken;
  pollfd entry = {.fd = fd, .events = POLLOUT, .revents = 0};
  ::poll(&entry, 1, -1);
  return Write::again;
}

}  // namespace

ConsoleSink::ConsoleSink(int fd, Options options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
  state_->fd = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!state_->fd) throw_errno(concat("cannot duplicate descriptor ", fd));
  struct stat status = {};
  state_->is_pipe = ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
  const SignalsBlocked blocked;
  thread_ = std::thread([state = state_] { run(state); });
}

ConsoleSink::~ConsoleSink() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  const bool ended =
      state_->changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return state_->ended; });
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void ConsoleSink::push(std::string_view text) {
  if (text.empty()) return;
  const std::lock_guard lock(state_->mutex);
  if (state_->broken) return;
  if (state_->queue.empty() && !state_->busy) state_->last_progress = Clock::now();
  state_->queue += text;
  state_->changed.notify_all();
}

bool ConsoleSink::full() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queue.size() >= state_->options.queue_bytes;
}

bool ConsoleSink::stalled() const {
  const std::lock_guard lock(state_->mutex);
  return state_->queue.size() >= state_->options.queue_bytes &&
         Clock::now() - state_->last_progress >= state_->options.stall_after;
}

bool ConsoleSink::wait_empty(Clock::time_point deadline) const {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_until(lock, deadline,
                                    [&] { return state_->queue.empty() && !state_->busy; });
}

void ConsoleSink::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return state->stop || !state->queue.empty(); });
    if (state->stop) break;
    const bool was_full = state->queue.size() >= state->options.queue_bytes;
    state->writing.clear();
    state->writing.swap(state->queue);
    state->busy = true;
    lock.unlock();
    if (was_full && state->options.room) ::eventfd_write(state->options.room->get(), 1);

    std::string_view rest = state->writing;
    bool broken = false;
    while (!rest.empty() && !broken) {
      const Write result = write_some(state->fd.get(), rest, state->is_pipe);
      broken = result == Write::broken;
      lock.lock();
      if (result == Write::some) state->last_progress = Clock::now();
      const bool stop = state->stop;
      lock.unlock();
      if (stop) break;
    }

    lock.lock();
    state->busy = false;
    if (broken) {
      // Nobody reads any more, as after `| head`. Training goes on.
      state->broken = true;
      state->queue.clear();
    }
    state->changed.notify_all();
  }
  state->ended = true;
  state->changed.notify_all();
}

}  // namespace lockstep
