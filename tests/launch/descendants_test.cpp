#include "launch/descendants.h"

#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>

#include "tests/core/temporary_folder.h"

using lockstep::blocked_thread;
using lockstep::descendants_of;
using lockstep::describe;
using lockstep::ProcessInfo;
using lockstep::read_process;
using lockstep::testing::TemporaryFolder;

namespace {

// A folder that looks like /proc.
class FakeProc {
 public:
  void add(pid_t pid, pid_t parent, const std::string& name = "tool", char state = 'S') const {
    add_thread(pid, pid, parent, name, state);
    std::ofstream(folder_ / (std::to_string(pid) + "/stat")) << line(pid, parent, name, state);
  }

  void add_thread(pid_t pid, pid_t tid, pid_t parent, const std::string& name = "tool",
                  char state = 'S') const {
    const std::string task = folder_ / (std::to_string(pid) + "/task/" + std::to_string(tid));
    std::filesystem::create_directories(task);
    std::ofstream(task + "/stat") << line(tid, parent, name, state);
  }

  void set(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ / file) << text;
  }

  std::string root() const { return folder_.path(); }

 private:
  static std::string line(pid_t pid, pid_t parent, const std::string& name, char state) {
    return std::to_string(pid) + " (" + name + ") " + state + " " + std::to_string(parent) +
           " 7 8 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4242 1000 2000\n";
  }

  TemporaryFolder folder_;
};

std::vector<pid_t> pids(const std::vector<ProcessInfo>& processes) {
  std::vector<pid_t> result;
  for (const ProcessInfo& process : processes) {
    result.push_back(process.pid);
  }
  return result;
}

}  // namespace

TEST(Descendants, a_name_may_hold_spaces_and_parentheses) {
  const FakeProc proc;
  proc.add(10, 1, "a) R 9 (b", 'T');
  const auto process = read_process(10, proc.root());
  ASSERT_TRUE(process);
  EXPECT_EQ(*process, (ProcessInfo{.pid = 10,
                                   .parent = 1,
                                   .group = 7,
                                   .session = 8,
                                   .state = 'T',
                                   .name = "a) R 9 (b",
                                   .start_ticks = 4242}));
  EXPECT_FALSE(read_process(11, proc.root()));
}

TEST(Descendants, are_found_by_their_parents_where_the_kernel_lists_no_children) {
  const FakeProc proc;
  proc.add(10, 1);
  proc.add(12, 11);
  proc.add(11, 10);
  proc.add(13, 1);
  EXPECT_EQ(pids(descendants_of(10, proc.root())), (std::vector<pid_t>{11, 12}));
  EXPECT_TRUE(descendants_of(13, proc.root()).empty());
}

TEST(Descendants, are_found_by_the_lists_of_children_of_all_threads) {
  const FakeProc proc;
  proc.add(10, 1);
  proc.add_thread(10, 20, 1);
  for (const pid_t child : {11, 12, 13}) {
    proc.add(child, 1);  // the parent is not looked at
    proc.set(std::to_string(child) + "/task/" + std::to_string(child) + "/children", "");
  }
  proc.set("10/task/10/children", "11 ");
  proc.set("10/task/20/children", "12 99 ");  // 99 has ended
  proc.set("11/task/11/children", "13 ");
  std::vector<pid_t> found = pids(descendants_of(10, proc.root()));
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[2], 13);
  EXPECT_EQ(found[0] + found[1], 11 + 12);
}

TEST(Descendants, any_thread_may_be_the_one_that_is_blocked) {
  const FakeProc proc;
  proc.add(10, 1, "python3", 'Z');
  EXPECT_FALSE(blocked_thread(10, proc.root()));
  proc.add_thread(10, 20, 1, "worker", 'D');
  proc.set("10/task/20/wchan", "rpc_wait_bit_killable");
  const auto blocked = blocked_thread(10, proc.root());
  ASSERT_TRUE(blocked);
  EXPECT_EQ(blocked->tid, 20);
  EXPECT_EQ(describe(*read_process(10, proc.root()), blocked),
            "10 (python3), blocked in the kernel (state D) in rpc_wait_bit_killable");
}

TEST(Descendants, the_real_proc_shows_a_child_that_waits_uninterruptibly) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The kernel holds the parent of a vfork in state D until the child has let go of its memory.
    if (::vfork() == 0) {
      [[maybe_unused]] const auto written = ::write(ends[1], "x", 1);
      ::pause();
      ::_exit(0);
    }
    ::_exit(0);
  }
  char ignored = 0;
  ASSERT_EQ(::read(ends[0], &ignored, 1), 1);
  const std::vector<pid_t> all = pids(descendants_of(::getpid()));
  EXPECT_EQ(std::count(all.begin(), all.end(), child), 1);
  const auto found = descendants_of(child);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].parent, child);
  EXPECT_EQ(std::count(all.begin(), all.end(), found[0].pid), 1);
  auto blocked = blocked_thread(child);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!blocked && std::chrono::steady_clock::now() < deadline) {  // the kernel comes to it
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    blocked = blocked_thread(child);
  }
  EXPECT_TRUE(blocked);
  EXPECT_FALSE(blocked_thread(found[0].pid));
  EXPECT_NE(describe(*read_process(child), blocked).find("blocked in the kernel (state D)"),
            std::string::npos);
  ::kill(found[0].pid, SIGKILL);
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(ends[0]);
  ::close(ends[1]);
}
