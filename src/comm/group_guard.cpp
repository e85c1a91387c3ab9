#include "comm/group_guard.h"

#include <chrono>
#include <regex>

#include "lockstep/error.h"

namespace lockstep {
namespace {

// A process that gets little time may need a while to notice that its connections are closed.
constexpr std::chrono::seconds kLettingGo{5};

bool contains_any(const std::string& text, std::initializer_list<const char*> needles) {
  for (const char* needle : needles) {
    if (text.find(needle) != std::string::npos) return true;
  }
  return false;
}

// Backends decorate their messages with source paths of the machine that built them, C++ stacks and
// advice. What happened stands between those.
std::string essence(std::string text) {
  text = std::regex_replace(text, std::regex(R"(^\[[^\]]*\.(cc|cpp|h):\d+\] )"), "");
  for (const char* tail :
       {"\nException raised from", ". This is typically caused", "\nC++ CapturedTraceback", "\n"}) {
    if (const auto at = text.find(tail); at != std::string::npos) text.resize(at);
  }
  return text;
}

}  // namespace

std::string GroupGuard::prefix(const char* operation) const {
  const int global_rank = options_.global_ranks.at(options_.rank);
  return concat("rank ", global_rank, ": ", operation,
                options_.group_name == "0" ? "" : concat(" in group ", options_.group_name), ": ");
}

GroupGuard::Verdict GroupGuard::judge(const std::string& text) {
  Verdict verdict{.state = State::failed, .dead = {}, .reason = essence(text)};
  if (contains_any(text, {"Timed out", "timed out", "imeout"})) verdict.state = State::timed_out;
  if (contains_any(text, {"Connection closed by peer", "Connection reset", "Broken pipe",
                          "Connection refused", "Read error", "Write error", "writev",
                          "remote process exited", "NCCL communicator was aborted",
                          "ncclRemoteError", "Socket Timeout"})) {
    verdict.state = State::peer_lost;
  }
  return verdict;
}

void GroupGuard::throw_verdict(const Verdict& verdict, const char* operation) const {
  const std::string start = prefix(operation);
  switch (verdict.state) {
    case State::aborted:
      throw Aborted(concat(start, "this process aborted the group"));
    case State::retired:
      throw Aborted(concat(start, "this process has left the world (World::destroy)"));
    case State::peer_lost: {
      std::string who;
      for (int dead : verdict.dead) {
        who += concat(who.empty() ? "" : ", ", "rank ", dead, options_.peers->describe(dead));
      }
      throw PeerLost(concat(start, "lost ", who.empty() ? "the connection to another rank" : who,
                            ": ", verdict.reason),
                     {.rank = options_.global_ranks.at(options_.rank),
                      .peers = verdict.dead,
                      .operation = operation});
    }
    case State::timed_out:
      throw Timeout(concat(start, verdict.reason,
                           "; every rank must call the same operations in the same order, and in "
                           "time (InitOptions::timeout)"));
    default:
      throw Error(concat(start, verdict.reason));
  }
}

void GroupGuard::check_usable(const char* operation) {
  std::unique_lock lock(mutex_);
  if (verdict_.state == State::working) return;
  const Verdict verdict = verdict_;
  lock.unlock();
  throw_verdict(verdict, operation);
}

void GroupGuard::rethrow(const std::exception_ptr& failure, const char* operation) {
  std::string text;
  try {
    std::rethrow_exception(failure);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
    text = "an exception of an unknown type";
  }

  std::unique_lock lock(mutex_);
  if (verdict_.state == State::working) {
    Verdict verdict = judge(text);
    // A call that was wrong in itself (a tensor of a bad shape) leaves the connections intact.
    if (verdict.state == State::failed) {
      lock.unlock();
      throw_verdict(verdict, operation);
    }
    // First the others must hear of it; finding out who died can take a moment.
    if (close_) close_();
    verdict.dead = options_.peers->find_dead(options_.global_ranks);
    // A time-out while a member is dead is that member's fault.
    if (!verdict.dead.empty()) verdict.state = State::peer_lost;
    verdict_ = verdict;
    stop_metering();
    changed_.notify_all();
  }
  const Verdict verdict = verdict_;
  lock.unlock();
  throw_verdict(verdict, operation);
}

bool GroupGuard::retire() {
  std::lock_guard lock(mutex_);
  close_ = nullptr;
  if (verdict_.state != State::working) return false;
  verdict_.state = State::retired;
  stop_metering();
  changed_.notify_all();
  return true;
}

bool GroupGuard::working() {
  std::lock_guard lock(mutex_);
  return verdict_.state == State::working;
}

void GroupGuard::operation_began(const char* operation) {
  std::lock_guard lock(mutex_);
  ++in_flight_;
  meter_began(operation);
}

void GroupGuard::operation_ended(bool* ended) {
  std::lock_guard lock(mutex_);
  --in_flight_;
  meter_ended();
  if (ended != nullptr) *ended = true;
  changed_.notify_all();
}

void GroupGuard::wait_began(const char* operation) {
  std::lock_guard lock(mutex_);
  meter_began(operation);
}

void GroupGuard::wait_ended() {
  std::lock_guard lock(mutex_);
  meter_ended();
}

void GroupGuard::meter_began(const char* operation) {
  if (!options_.meter) return;
  ++metered_;
  options_.meter->wait_began(operation);
}

void GroupGuard::meter_ended() {
  if (!options_.meter) return;
  --metered_;
  options_.meter->wait_ended();
}

void GroupGuard::stop_metering() {
  if (metered_ > 0) options_.meter->wait_ended(metered_);
  metered_ = 0;
  options_.meter = nullptr;
}

bool GroupGuard::await_end(const bool& ended) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended || verdict_.state != State::working; });
  return let_go(lock, [&] { return ended; });
}

template <typename Condition>
bool GroupGuard::let_go(std::unique_lock<std::mutex>& lock, Condition condition) {
  if (given_up_) return condition();
  given_up_ = !changed_.wait_for(lock, kLettingGo, condition);
  return !given_up_;
}

bool GroupGuard::is_stuck() {
  std::lock_guard lock(mutex_);
  return given_up_ && in_flight_ > 0;
}

void GroupGuard::break_off() {
  const std::lock_guard lock(mutex_);
  if (verdict_.state == State::working) verdict_.state = State::aborted;
  stop_metering();
  changed_.notify_all();
  if (close_) close_();
}

void GroupGuard::abort() {
  break_off();
  // With every connection closed the backend's threads end by themselves, but for sends that Gloo
  // has forgotten: those read their tensors at most, and is_stuck() tells of them.
  std::unique_lock lock(mutex_);
  let_go(lock, [&] { return in_flight_ == 0; });
}

}  // namespace lockstep
