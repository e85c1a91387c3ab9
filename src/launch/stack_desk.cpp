#include "launch/stack_desk.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/parse_integer.h"
#include "core/unix_socket.h"
#include "launch/json_fields.h"
#include "lockstep/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxQuestions = 16;
constexpr std::string_view kQuestion = "lockstep stacks 1 ";
constexpr std::int64_t kMaxLimit = 3'600'000;  // an hour, in milliseconds
// The coordinator names those who do not answer; this is for a coordinator that does not.
constexpr std::chrono::seconds kLeeway{5};

std::string missing_line(const std::vector<std::string>& missing) {
  return dump_json({{"missing", missing}});
}

std::string result_file(const std::string& run_directory) {
  return run_directory + "/stacks.json";
}

std::string read_and_remove(const std::string& path) {
  std::string text;
  {
    std::ifstream file(path, std::ios::binary);
    std::getline(file, text);
  }
  ::unlink(path.c_str());
  return text;
}

}  // namespace

std::string stack_socket(const std::string& run_directory) {
  return run_directory + "/ask.sock";
}

std::string stack_question(std::chrono::milliseconds limit) {
  return concat(kQuestion, limit.count(), "\n");
}

StackDesk::StackDesk(EventLoop& loop, std::string run_directory, Send send,
                     const std::function<void(const std::string&)>& warn)
    : loop_(loop), run_directory_(std::move(run_directory)), send_(std::move(send)) {
  try {
    listener_ = listen_at_path(stack_socket(run_directory_));
    loop_.watch(listener_.get(), EPOLLIN, [this](std::uint32_t) { on_connection(); });
  } catch (const SystemError& error) {
    warn(concat("`lockstep stack` will show this machine's ranks only: ", error.what()));
    listener_.reset();
  }
}

StackDesk::~StackDesk() {
  while (!questions_.empty()) drop(questions_.begin());
  if (search_) {
    loop_.unwatch(search_->pidfd());
    search_.reset();  // ends it
    ::unlink(result_file(run_directory_).c_str());
  }
  if (!listener_) return;
  loop_.unwatch(listener_.get());
  ::unlink(stack_socket(run_directory_).c_str());
}

void StackDesk::on_connection() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket) return;
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool known = ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  if (!known || (peer.uid != ::geteuid() && peer.uid != 0)) return;
  if (questions_.size() >= kMaxQuestions) return;
  const std::uint64_t id = ++last_id_;
  loop_.watch(socket.get(), EPOLLIN, [this, id](std::uint32_t events) { on_ready(id, events); });
  Question& question = questions_[id];
  question.socket = std::move(socket);
}

void StackDesk::on_ready(std::uint64_t id, std::uint32_t events) {
  const auto found = questions_.find(id);
  if (found == questions_.end()) return;
  if (events & EPOLLOUT) return flush(found);
  std::array<char, 256> buffer;
  const ssize_t count = ::recv(found->second.socket.get(), buffer.data(), buffer.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // Who asks has nothing else to say.
  if (count <= 0 || found->second.asked) return drop(found);
  ask(id, {buffer.data(), static_cast<std::size_t>(count)});
}

// The line is short enough to come in one piece.
void StackDesk::ask(std::uint64_t id, std::string_view line) {
  Question& question = questions_.at(id);
  std::optional<std::int64_t> limit;
  if (line.starts_with(kQuestion) && line.ends_with('\n')) {
    line.remove_prefix(kQuestion.size());
    limit = parse_integer<std::int64_t>(line.substr(0, line.size() - 1));
  }
  if (!limit || *limit <= 0 || *limit > kMaxLimit) return drop(questions_.find(id));
  question.asked = true;
  const std::chrono::milliseconds time(*limit);
  question.limit = loop_.after(time + kLeeway, [this, id] {
    answer(id, missing_line({"the coordinator, and with it all other nodes"}), /*last=*/true);
  });
  send_(AskStacks{id, time});
}

void StackDesk::on_message(const Message& message) {
  if (const auto* find = std::get_if<FindStacks>(&message)) {
    search(*find);
  } else if (const auto* found = std::get_if<FoundStacks>(&message)) {
    answer(found->id, found->stacks, /*last=*/false);
  } else if (const auto* done = std::get_if<StacksDone>(&message)) {
    answer(done->id, missing_line(done->missing), /*last=*/true);
  }
}

void StackDesk::answer(std::uint64_t id, const std::string& line, bool last) {
  const auto found = questions_.find(id);
  if (found == questions_.end() || found->second.last_line) return;
  found->second.output += line + "\n";
  found->second.last_line = last;
  flush(found);
}

void StackDesk::flush(Questions::iterator found) {
  Question& question = found->second;
  while (!question.output.empty()) {
    const ssize_t count =
        ::send(question.socket.get(), question.output.data(), question.output.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) return drop(found);
    if (count < 0) break;
    question.output.erase(0, static_cast<std::size_t>(count));
  }
  if (question.output.empty() && question.last_line) return drop(found);
  loop_.change(question.socket.get(), EPOLLIN | (question.output.empty() ? 0u : EPOLLOUT));
}

void StackDesk::drop(Questions::iterator found) {
  loop_.cancel(found->second.limit);
  loop_.unwatch(found->second.socket.get());
  questions_.erase(found);
}

// One search at a time: who asks meanwhile gets what it finds.
void StackDesk::search(const FindStacks& find) {
  wanted_by_.push_back(find.id);
  if (search_) return;
  try {
    search_.emplace(
        SubprocessOptions{.argv = {"/proc/self/exe", "stack", "--here", run_directory_, "--limit",
                                   concat(static_cast<double>(find.limit.count()) / 1000)},
                          .set_environment = {},
                          .unset_environment = {},
                          .stdout_path = result_file(run_directory_),
                          .stderr_path = "/dev/null"});
  } catch (const SystemError&) {
    wanted_by_.clear();  // who asked will say that this node did not answer
    return;
  }
  loop_.watch(search_->pidfd(), EPOLLIN, [this](std::uint32_t) { on_search_over(); });
}

void StackDesk::on_search_over() {
  loop_.unwatch(search_->pidfd());
  search_->wait();
  search_.reset();
  const std::string stacks = read_and_remove(result_file(run_directory_));
  for (const std::uint64_t id : std::exchange(wanted_by_, {})) {
    if (!stacks.empty()) send_(FoundStacks{id, stacks});
  }
}

}  // namespace lockstep
