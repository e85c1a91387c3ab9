#include "control/agent_client.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/parse_integer.h"
#include "core/unix_socket.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWelcomeTimeout{30000};  // the agent may be busy starting hundreds of us
constexpr milliseconds kFarewellTimeout{500};
constexpr std::size_t kMaxOutbox = 1000;

template <typename Integer>
Integer required_number(const Environment& environment, const char* name) {
  const auto text = environment.get(name);
  if (!text) {
    throw InvalidArgument(
        concat(name, " is not set although LOCKSTEP_AGENT is; they come from one launcher"));
  }
  const auto value = parse_integer<Integer>(*text);
  if (!value || std::cmp_less(*value, 0)) {
    throw InvalidArgument(concat(name, " is '", *text, "'; it must be a number, 0 or more"));
  }
  return *value;
}

// Where the system allows it to parents only (kernel.yama.ptrace_scope 1), the agent's tools, which
// are no parents of ours, could not find out where this process hangs. Elsewhere it has no effect.
void let_agent_look_into_us(int socket) {
  ucred agent{};
  socklen_t length = sizeof(agent);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &agent, &length) == 0 && agent.pid > 0) {
    ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(agent.pid), 0, 0, 0);
  }
}

}  // namespace

std::unique_ptr<AgentClient> AgentClient::from_environment(const Environment& environment) {
  const auto path = environment.get("LOCKSTEP_AGENT");
  if (!path || path->empty()) return nullptr;
  if (environment.get("LOCKSTEP_SPARE") == "1") {
    return std::make_unique<AgentClient>(Options{
        .socket_path = *path,
        .hello = {.pid = ::getpid(), .program = program_invocation_short_name, .spare = true}});
  }
  return std::make_unique<AgentClient>(
      Options{.socket_path = *path,
              .hello = {.pid = ::getpid(),
                        .rank = required_number<int>(environment, "RANK"),
                        .slot = required_number<int>(environment, "LOCKSTEP_SLOT"),
                        .epoch = required_number<std::uint64_t>(environment, "LOCKSTEP_EPOCH"),
                        .program = program_invocation_short_name}});
}

AgentClient::AgentClient(Options options)
    : options_(std::move(options)),
      pid_(::getpid()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw_errno("eventfd");
  // Signals are for the program's threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

AgentClient::~AgentClient() {
  if (::getpid() != pid_) {  // a forked child has a copy of the object and not the thread
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    end_by_ = Clock::now() + kFarewellTimeout;
  }
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void AgentClient::report_lost_peers(std::vector<int> ranks, std::string operation) {
  post(WorkerLostPeers{.ranks = std::move(ranks), .operation = std::move(operation)});
}

void AgentClient::report_recovers(std::uint64_t epoch, std::int64_t committed_steps) {
  post(WorkerRecovers{.epoch = epoch, .step = committed_steps});
}

void AgentClient::report_recovers_no_more(std::uint64_t epoch, std::int64_t committed_steps) {
  post(WorkerRecovers{.epoch = epoch, .step = committed_steps, .able = false});
}

void AgentClient::reject(std::uint64_t epoch, std::vector<int> ranks, std::string reason) {
  post(WorkerRejected{.ranks = std::move(ranks), .reason = std::move(reason), .epoch = epoch});
}

void AgentClient::post(MessageFromWorker message) {
  {
    const std::lock_guard lock(mutex_);
    if (outbox_.size() >= kMaxOutbox) return;
    outbox_.push_back(std::move(message));
  }
  ::eventfd_write(wake_.get(), 1);
}

void AgentClient::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (outbox_.size() >= kMaxOutbox) return;
    outbox_.emplace_back(meter_->look());  // where it ended
    outbox_.emplace_back(WorkerLeaving{});
  }
  ::eventfd_write(wake_.get(), 1);
}

std::optional<milliseconds> AgentClient::stop_deadline() const {
  if (!stop_requested()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return std::max(milliseconds(0),
                  std::chrono::duration_cast<milliseconds>(stop_at_ - Clock::now()));
}

std::string AgentClient::stop_reason() const {
  const std::lock_guard lock(mutex_);
  return stop_reason_;
}

void AgentClient::on_stop(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    on_stop_ = callback;
  }
  if (stop_requested() && callback) callback();
}

std::optional<RevokeWorld> AgentClient::revoked() const {
  const std::lock_guard lock(mutex_);
  return revoked_;
}

bool AgentClient::is_revoked() const {
  return revoked_ && (!new_world_ || new_world_->epoch < revoked_->epoch);
}

void AgentClient::on_revoke(std::function<void(const RevokeWorld&)> callback) {
  std::optional<RevokeWorld> known;
  {
    const std::lock_guard lock(mutex_);
    on_revoke_ = callback;
    if (is_revoked()) known = revoked_;
  }
  if (known && callback) callback(*known);
}

std::optional<NewWorld> AgentClient::await_world(std::uint64_t least_epoch, milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto has_come = [&] {
    return new_world_ && new_world_->epoch >= least_epoch && !is_revoked();
  };
  changed_.wait_for(lock, limit,
                    [&] { return has_come() || stop_requested() || !problem_.empty(); });
  if (!has_come() || stop_requested()) return std::nullopt;
  return new_world_;
}

std::optional<TakePlace> AgentClient::await_place(milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [&] { return place_ || stop_requested() || !problem_.empty(); });
  if (stop_requested()) return std::nullopt;
  return place_;
}

std::optional<NewWorld> AgentClient::new_world() const {
  const std::lock_guard lock(mutex_);
  return new_world_;
}

void AgentClient::on_new_world(std::function<void(const NewWorld&)> callback) {
  std::optional<NewWorld> known;
  {
    const std::lock_guard lock(mutex_);
    on_new_world_ = callback;
    known = new_world_;
  }
  if (known && callback) callback(*known);
}

bool AgentClient::replaces_workers() const {
  const std::lock_guard lock(mutex_);
  return replaces_;
}

bool AgentClient::connected() const {
  const std::lock_guard lock(mutex_);
  return connected_;
}

bool AgentClient::await_welcome() const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kWelcomeTimeout, [&] { return connected_ || !problem_.empty(); });
  return connected_;
}

std::string AgentClient::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

void AgentClient::end(const std::string& problem) {
  const std::lock_guard lock(mutex_);
  connected_ = false;
  if (problem_.empty()) problem_ = problem;
  changed_.notify_all();
}

void AgentClient::run() {
  try {
    socket_ = connect_to_path(options_.socket_path);
    let_agent_look_into_us(socket_.get());
    send(options_.hello);
    next_beat_ = Clock::now() + kWelcomeTimeout;
    converse();
  } catch (const std::exception& error) {
    end(error.what());
  } catch (...) {
    end("a callback threw something that is no exception of C++");
  }
  socket_.reset();
}

void AgentClient::converse() {
  while (true) {
    take_outbox();
    beat_if_due();
    flush();
    if (may_end()) return;
    if (wait() && !receive()) return end("the agent closed the connection");
    if (!welcomed() && Clock::now() >= next_beat_) return end("the agent did not answer");
  }
}

bool AgentClient::may_end() const {
  const std::lock_guard lock(mutex_);
  if (!end_by_) return false;
  const bool all_said = outbox_.empty() && (output_.empty() || !welcomed());
  return all_said || Clock::now() >= *end_by_;
}

bool AgentClient::wait() {
  auto until = next_beat_;
  {
    const std::lock_guard lock(mutex_);
    if (end_by_) until = std::min(until, *end_by_);
  }
  const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
  std::array<pollfd, 2> ready{
      pollfd{.fd = socket_.get(),
             .events = static_cast<short>(output_.empty() ? POLLIN : POLLIN | POLLOUT),
             .revents = 0},
      pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  ::poll(ready.data(), ready.size(),
         static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60000)));
  eventfd_t count = 0;
  if (ready[1].revents != 0) ::eventfd_read(wake_.get(), &count);
  return (ready[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
}

bool AgentClient::receive() {
  std::array<char, 16 << 10> buffer;
  const ssize_t got = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  std::string_view bytes(buffer.data(), static_cast<std::size_t>(got));
  while (const auto frame = decoder_.next(bytes)) handle(decode_to_worker(*frame));
  return true;
}

void AgentClient::handle(const MessageToWorker& message) {
  if (const auto* refused = std::get_if<WorkerRefused>(&message)) {
    throw SystemError(concat("the agent refused this worker: ", refused->reason));
  }
  if (const auto* welcome = std::get_if<WorkerWelcome>(&message)) {
    protocol_ = std::max(welcome->protocol, 1);
    interval_ = std::max(welcome->heartbeat_interval, milliseconds(1));
    next_beat_ = Clock::now();
    const std::lock_guard lock(mutex_);
    connected_ = true;
    replaces_ = welcome->replaces && protocol_ >= kFirstRecoveringProtocol;
    changed_.notify_all();
  } else if (const auto* stop = std::get_if<StopWorker>(&message)) {
    handle_stop(*stop);
  } else if (const auto* revoke = std::get_if<RevokeWorld>(&message)) {
    handle_revoke(*revoke);
  } else if (const auto* world = std::get_if<NewWorld>(&message)) {
    handle_new_world(*world);
  } else if (const auto* take = std::get_if<TakePlace>(&message)) {
    handle_take_place(*take);
  } else if (welcomed()) {
    next_beat_ = Clock::now();  // a ping
  }
}

void AgentClient::handle_stop(const StopWorker& stop) {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    stop_reason_ = stop.reason;
    stop_at_ = Clock::now() + stop.remaining;
    callback = on_stop_;
    stop_requested_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  if (callback) callback();
}

void AgentClient::handle_revoke(const RevokeWorld& revoke) {
  std::function<void(const RevokeWorld&)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (revoked_ && revoked_->epoch >= revoke.epoch) return;
    if (new_world_ && new_world_->epoch >= revoke.epoch) return;
    revoked_ = revoke;
    callback = on_revoke_;
  }
  if (callback) callback(revoke);
}

void AgentClient::handle_new_world(const NewWorld& world) {
  std::function<void(const NewWorld&)> callback;
  {
    const std::lock_guard lock(mutex_);
    // What comes late must not undo what came before it.
    if (new_world_ && new_world_->epoch >= world.epoch) return;
    new_world_ = world;
    callback = on_new_world_;
  }
  changed_.notify_all();
  if (callback) callback(world);
}

void AgentClient::handle_take_place(const TakePlace& take) {
  {
    const std::lock_guard lock(mutex_);
    if (!place_) place_ = take;
  }
  changed_.notify_all();
}

void AgentClient::send(const MessageFromWorker& message) {
  output_ += encode_frame(encode_from_worker(message));
}

void AgentClient::take_outbox() {
  if (!welcomed()) return;
  std::vector<MessageFromWorker> messages;
  {
    const std::lock_guard lock(mutex_);
    messages.swap(outbox_);
  }
  const auto is_of_version_2 = [](const MessageFromWorker& message) {
    return std::holds_alternative<WorkerRecovers>(message) ||
           std::holds_alternative<WorkerRejected>(message);
  };
  for (const auto& message : messages) {
    if (protocol_ >= kFirstRecoveringProtocol || !is_of_version_2(message)) send(message);
  }
}

void AgentClient::beat_if_due() {
  if (!welcomed() || Clock::now() < next_beat_) return;
  next_beat_ = Clock::now() + interval_;
  // An agent that does not read gets the newest when it does, not all that it missed.
  if (output_.empty()) send(meter_->look());
}

void AgentClient::flush() {
  while (!output_.empty()) {
    const ssize_t sent = ::send(socket_.get(), output_.data(), output_.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) throw SystemError(concat("the agent is gone: ", std::strerror(errno)));
    output_.erase(0, static_cast<std::size_t>(sent));
  }
}

}  // namespace lockstep
