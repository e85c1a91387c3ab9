#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/subprocess.h"
#include "core/unique_fd.h"
#include "launch/event_loop.h"
#include "launch/messages.h"

namespace lockstep {

/// At every node: where `lockstep stack` asks for the stacks of a whole job, and where this node's
/// are found for others who ask.
///
/// The question is a connection to the socket `ask.sock` in the run directory, which only this user
/// can make, and a line on it, stack_question(). The answer is a line for each node that has one,
/// NodeStacks as JSON, and a last one that names those that have not: {"missing": [...]}.
///
/// Looking into processes takes long and runs tools of others, so another process does it. Not
/// thread-safe; never blocks. The loop must outlive it.
class StackDesk {
 public:
  /// The way to the coordinator.
  using Send = std::function<void(const Message&)>;

  /// Without the socket, where the system refuses it, this node still answers others; `warn` is
  /// told.
  StackDesk(EventLoop& loop, std::string run_directory, Send send,
            const std::function<void(const std::string&)>& warn);
  ~StackDesk();
  StackDesk(const StackDesk&) = delete;
  StackDesk& operator=(const StackDesk&) = delete;

  /// Messages about stacks; others change nothing.
  void on_message(const Message& message);

 private:
  struct Question {
    UniqueFd socket;
    bool asked = false;
    std::string output;
    bool last_line = false;      // is in the output
    EventLoop::TimerId limit{};  // for the coordinator to answer
  };
  using Questions = std::map<std::uint64_t, Question>;

  void on_connection();
  void on_ready(std::uint64_t id, std::uint32_t events);
  void answer(std::uint64_t id, const std::string& line, bool last);
  void flush(Questions::iterator question);
  void drop(Questions::iterator question);
  void ask(std::uint64_t id, std::string_view line);
  void search(const FindStacks& find);
  void on_search_over();

  EventLoop& loop_;
  std::string run_directory_;
  Send send_;
  UniqueFd listener_;
  Questions questions_;
  std::uint64_t last_id_ = 0;
  std::optional<Subprocess> search_;
  std::vector<std::uint64_t> wanted_by_;  // who waits for the search, by the coordinator's numbers
};

/// The line. The limit is what nodes have to answer.
std::string stack_question(std::chrono::milliseconds limit);

/// The socket of a run directory.
std::string stack_socket(const std::string& run_directory);

}  // namespace lockstep
