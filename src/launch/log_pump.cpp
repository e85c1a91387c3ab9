#include "launch/log_pump.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <future>

#include "launch/pseudo_terminal.h"
#include "launch/pumped_stream.h"
#include "launch/signals_blocked.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTailLimit{1000};
constexpr milliseconds kRecheckConsole{100};

struct Ends {
  UniqueFd ours;
  UniqueFd workers;
};

Ends make_ends(const StreamOptions& options) {
  if (options.terminal) {
    try {
      PseudoTerminal terminal = open_pseudo_terminal(options.console_fd);
      return {std::move(terminal.our_end), std::move(terminal.program_end)};
    } catch (const SystemError&) {
      // Without pseudo terminals a pipe does; progress bars are then as plain as in a file.
    }
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("cannot make a pipe for a worker's output");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

class LogPump::Reader {
 public:
  explicit Reader(LogPumpOptions options)
      : options_(options),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        wake_(std::make_shared<UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
    if (!epoll_ || !*wake_) throw_errno("cannot set up the log pump");
    watch(wake_->get(), EPOLL_CTL_ADD, EPOLLIN);
  }

  /// Has the thread run this soon; the future is ready when it has.
  std::future<void> post(std::function<void()> command) {
    auto task = std::make_shared<std::packaged_task<void()>>(std::move(command));
    std::future<void> done = task->get_future();
    {
      const std::lock_guard lock(mutex_);
      commands_.push_back([task] { (*task)(); });
    }
    ::eventfd_write(wake_->get(), 1);
    return done;
  }

  void run();
  void stop() { stopped_ = true; }

  // The rest runs on the thread.

  void add(std::uint64_t id, UniqueFd input, StreamOptions options, std::shared_ptr<LineTail> tail);
  void redirect(std::uint64_t id, StreamOptions options);
  void drain(std::uint64_t id);
  void remove(std::uint64_t id);
  void print(int fd, const std::string& text);
  void drain_all(std::promise<void> ended);
  std::vector<PumpedConsole*> put_out_held();
  void resize_terminals() const;

 private:
  void watch(int fd, int operation, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.fd = fd}};
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) throw_errno("epoll_ctl");
  }
  void run_commands();
  void read_ready(int fd);
  void look_after_streams();
  milliseconds longest_sleep() const;
  PumpedConsole* console_for(int fd);
  std::shared_ptr<LogFile> open_file(const std::string& path, std::uintmax_t max_bytes);
  PumpedStream::Outlets outlets_of(const StreamOptions& wanted);

  LogPumpOptions options_;
  UniqueFd epoll_;
  std::shared_ptr<UniqueFd> wake_;
  bool stopped_ = false;

  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;

  std::map<std::uint64_t, PumpedStream> streams_;
  std::map<std::pair<dev_t, ino_t>, std::unique_ptr<PumpedConsole>> consoles_;
  std::map<std::string, std::weak_ptr<LogFile>> filtered_;  // by path: streams share one
  std::vector<std::promise<void>> waiting_for_end_;
};

void LogPump::Reader::run() {
  std::array<epoll_event, 64> events;
  while (!stopped_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(),
                                   static_cast<int>(longest_sleep().count()));
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == wake_->get()) {
        run_commands();
      } else {
        read_ready(fd);
      }
    }
    look_after_streams();
  }
}

void LogPump::Reader::run_commands() {
  eventfd_t ignored;
  ::eventfd_read(wake_->get(), &ignored);
  std::vector<std::function<void()>> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& command : commands) command();
}

void LogPump::Reader::read_ready(int fd) {
  // A command of this round may have removed the stream.
  const auto found =
      std::ranges::find_if(streams_, [&](const auto& entry) { return entry.second.fd() == fd; });
  if (found == streams_.end()) return;
  PumpedStream& stream = found->second;
  if (stream.must_wait() && waiting_for_end_.empty()) {
    stream.paused = true;
    watch(fd, EPOLL_CTL_DEL, 0);
    return;
  }
  stream.read_once();
}

void LogPump::Reader::look_after_streams() {
  const auto now = Clock::now();
  bool all_ended = true;
  for (auto& [id, stream] : streams_) {
    if (stream.show_at(options_.hold_partial) <= now) stream.show_held();
    if (stream.paused && !stream.ended() && (!stream.must_wait() || !waiting_for_end_.empty())) {
      stream.paused = false;
      watch(stream.fd(), EPOLL_CTL_ADD, EPOLLIN);
    }
    all_ended &= stream.ended();
  }
  for (auto& [key, console] : consoles_) {
    if (!console->sink.full()) console->say_what_was_missed();
  }
  if (!all_ended) return;
  for (std::promise<void>& waiting : waiting_for_end_) waiting.set_value();
  waiting_for_end_.clear();
}

milliseconds LogPump::Reader::longest_sleep() const {
  const auto now = Clock::now();
  milliseconds sleep(std::chrono::hours(1));
  for (const auto& [id, stream] : streams_) {
    if (stream.paused && !stream.ended()) sleep = std::min(sleep, kRecheckConsole);
    const auto show_at = stream.show_at(options_.hold_partial);
    if (show_at == Clock::time_point::max()) continue;
    sleep = std::min(sleep, std::chrono::ceil<milliseconds>(show_at - now));
  }
  return std::max(sleep, milliseconds(0));
}

PumpedConsole* LogPump::Reader::console_for(int fd) {
  // Standard output and standard error are often one terminal: then they must be one console, or
  // their lines would meet.
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return nullptr;  // closed, as with `>&-`
  std::unique_ptr<PumpedConsole>& console = consoles_[{status.st_dev, status.st_ino}];
  if (!console) {
    console = std::make_unique<PumpedConsole>(
        fd, ::isatty(fd) == 1,
        ConsoleSink::Options{.queue_bytes = options_.console_queue_bytes,
                             .stall_after = options_.stall_after,
                             .room = wake_});
  }
  return console.get();
}

std::shared_ptr<LogFile> LogPump::Reader::open_file(const std::string& path,
                                                    std::uintmax_t max_bytes) {
  return std::make_shared<LogFile>(LogFileOptions{
      .path = path, .max_bytes = max_bytes, .warn = [this](const std::string& message) {
        print(options_.message_fd, "lockstep: " + message);
      }});
}

void LogPump::Reader::add(std::uint64_t id, UniqueFd input, StreamOptions options,
                          std::shared_ptr<LineTail> tail) {
  remove(id);
  PumpedStream::Parts parts{.id = id,
                            .input = std::move(input),
                            .options = std::move(options),
                            .tail = std::move(tail),
                            .outlets = {}};
  parts.outlets = outlets_of(parts.options);
  const int fd = parts.input.get();
  streams_.emplace(id, PumpedStream(std::move(parts)));
  watch(fd, EPOLL_CTL_ADD, EPOLLIN);
}

PumpedStream::Outlets LogPump::Reader::outlets_of(const StreamOptions& wanted) {
  PumpedStream::Outlets outlets;
  if (wanted.console) outlets.console = console_for(wanted.console_fd);
  if (!wanted.file.empty()) outlets.file = open_file(wanted.file, wanted.max_bytes);
  if (!wanted.filtered_file.empty() && !wanted.needles.empty()) {
    std::erase_if(filtered_, [](const auto& entry) { return entry.second.expired(); });
    outlets.filtered = filtered_[wanted.filtered_file].lock();
    if (!outlets.filtered) {
      outlets.filtered = open_file(wanted.filtered_file, 0);
      filtered_[wanted.filtered_file] = outlets.filtered;
    }
  }
  return outlets;
}

void LogPump::Reader::redirect(std::uint64_t id, StreamOptions options) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  PumpedStream::Outlets outlets = outlets_of(options);
  found->second.redirect(std::move(options), std::move(outlets));
}

void LogPump::Reader::drain(std::uint64_t id) {
  const auto found = streams_.find(id);
  if (found != streams_.end()) found->second.drain();
}

void LogPump::Reader::remove(std::uint64_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  found->second.drain();
  if (!found->second.ended()) found->second.finish();
  streams_.erase(found);
}

void LogPump::Reader::print(int fd, const std::string& text) {
  PumpedConsole* console = console_for(fd);
  if (console != nullptr) console->message(text);
}

void LogPump::Reader::drain_all(std::promise<void> ended) {
  waiting_for_end_.push_back(std::move(ended));
}

std::vector<PumpedConsole*> LogPump::Reader::put_out_held() {
  for (auto& [id, stream] : streams_) {
    if (stream.ended()) continue;
    stream.drain();
    if (stream.console() != nullptr) stream.show_held();
  }
  for (std::promise<void>& waiting : waiting_for_end_) waiting.set_value();
  waiting_for_end_.clear();
  std::vector<PumpedConsole*> consoles;
  for (auto& [key, console] : consoles_) {
    console->say_what_was_missed();
    consoles.push_back(console.get());
  }
  return consoles;
}

void LogPump::Reader::resize_terminals() const {
  for (const auto& [id, stream] : streams_) {
    if (stream.options().terminal && !stream.ended()) {
      copy_window_size(stream.options().console_fd, stream.fd());
    }
  }
}

LogPump::LogPump(LogPumpOptions options) : reader_(std::make_unique<Reader>(options)) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { reader_->run(); });
}

LogPump::~LogPump() {
  reader_->post([this] { reader_->stop(); });
  thread_.join();
}

UniqueFd LogPump::open(std::uint64_t stream, StreamOptions options) {
  Ends ends = make_ends(options);
  // Only our end: the worker's has a mode of its own.
  const int flags = ::fcntl(ends.ours.get(), F_GETFL);
  ::fcntl(ends.ours.get(), F_SETFL, flags | O_NONBLOCK);
  auto tail = options.keep_tail ? std::make_shared<LineTail>() : nullptr;
  {
    const std::lock_guard lock(mutex_);
    tails_[stream] = tail;
  }
  auto input = std::make_shared<UniqueFd>(std::move(ends.ours));
  reader_->post([this, stream, input, options = std::move(options), tail = std::move(tail)] {
    reader_->add(stream, std::move(*input), options, tail);
  });
  return std::move(ends.workers);
}

void LogPump::redirect(std::uint64_t stream, StreamOptions options) {
  reader_->post(
      [this, stream, options = std::move(options)] { reader_->redirect(stream, options); });
}

std::shared_ptr<LineTail> LogPump::tail_of(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  const auto found = tails_.find(stream);
  return found == tails_.end() ? nullptr : found->second;
}

std::vector<std::string> LogPump::tail(std::uint64_t stream) {
  const std::shared_ptr<LineTail> tail = tail_of(stream);
  if (!tail) return {};
  const std::future<void> drained = reader_->post([this, stream] { reader_->drain(stream); });
  // Many workers may fail at once. Where the reader is held up for one of them it is for all, and
  // the caller has better things to do than to wait for each.
  const auto limit = Clock::now() < slow_until_ ? milliseconds(0) : kTailLimit;
  if (drained.wait_for(limit) != std::future_status::ready && limit != milliseconds(0)) {
    slow_until_ = Clock::now() + 10 * kTailLimit;
  }
  return tail->lines();
}

void LogPump::close(std::uint64_t stream) {
  {
    const std::lock_guard lock(mutex_);
    tails_.erase(stream);
  }
  reader_->post([this, stream] { reader_->remove(stream); });
}

void LogPump::print(int console_fd, std::string text) {
  reader_->post([this, console_fd, text = std::move(text)] { reader_->print(console_fd, text); });
}

bool LogPump::drain_all(std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> all_ended = ended->get_future();
  reader_->post([this, ended] { reader_->drain_all(std::move(*ended)); });
  const bool in_time = all_ended.wait_until(deadline) == std::future_status::ready;

  auto consoles = std::make_shared<std::vector<PumpedConsole*>>();
  // A little time beyond the limit: what is in the pipes must be taken out in any case.
  const auto grace = std::max(deadline, Clock::now() + milliseconds(200));
  const auto put_out = reader_->post([this, consoles] { *consoles = reader_->put_out_held(); });
  if (put_out.wait_until(grace) != std::future_status::ready) return false;
  return std::ranges::all_of(
             *consoles,
             [&](PumpedConsole* console) { return console->sink.wait_empty(deadline); }) &&
         in_time;
}

void LogPump::resize_terminals() {
  reader_->post([this] { reader_->resize_terminals(); });
}

}  // namespace lockstep
