#include "comm/group_guard.h"

#include <chrono>
#include <cstdio>
#include <regex>

#include "lockstep/error.h"

namespace lockstep {
namespace {

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
  return true;
}

bool GroupGuard::working() {
  std::lock_guard lock(mutex_);
  return verdict_.state == State::working;
}

void GroupGuard::operation_began() {
  std::lock_guard lock(mutex_);
  ++in_flight_;
}

void GroupGuard::operation_ended() {
  std::lock_guard lock(mutex_);
  if (--in_flight_ == 0) idle_.notify_all();
}

void GroupGuard::abort() {
  std::unique_lock lock(mutex_);
  if (verdict_.state == State::working) verdict_.state = State::aborted;
  if (close_) close_();
  // With every connection closed the backend's threads end by themselves; the limit is there so
  // that a bug of a backend shows as a message and not as a hang.
  if (!idle_.wait_for(lock, std::chrono::seconds(30), [&] { return in_flight_ == 0; })) {
    std::fprintf(stderr, "lockstep: %sabort: %d operations are still in flight after 30 s\n",
                 prefix("abort").c_str(), in_flight_);
  }
}

}  // namespace lockstep
