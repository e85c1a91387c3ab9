#include "launch/stack_parse.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <filesystem>

#include <gtest/gtest.h>

#include "launch/stack_text.h"
#include "launch/stack_tools.h"
#include "launch/system_call_words.h"
#include "tests/core/temporary_folder.h"

using lockstep::parse_eu_stack;
using lockstep::parse_gdb;
using lockstep::parse_py_spy;
using lockstep::permission_hint;
using lockstep::ProcessState;
using lockstep::stacks_in_words;
using lockstep::states_in_words;
using lockstep::system_call_in_words;
using lockstep::ThreadStack;
using lockstep::testing::TemporaryFolder;

using Stacks = std::vector<ThreadStack>;

namespace {

ProcessState process_with(std::vector<std::string> names) {
  ProcessState process;
  process.pid = 100;
  for (const std::string& name : names) {
    process.threads.push_back({.tid = static_cast<pid_t>(100 + process.threads.size()),
                               .name = name,
                               .state = 'S',
                               .call = "",
                               .kernel_frames = {}});
  }
  return process;
}

}  // namespace

TEST(StackParse, gdb_with_and_without_addresses) {
  const Stacks stacks = parse_gdb(
      "[New LWP 12]\n"
      "warning: something\n"
      "#0  outside of any thread ()\n"
      "\n"
      "Thread 2 (Thread 0xffffb0f6f1a0 (LWP 12) \"worker (1)\"):\n"
      "#0  __GI___clock_nanosleep (...) at ../sysdeps/clock_nanosleep.c:48\n"
      "#1  0x0000ffffb1c78430 in pysleep (timeout=<optimized out>) from /lib/a.so\n"
      "#2  0x0000ffffb1c78431 in ?? ()\n"
      "\n"
      "Thread 1 (process 11):\n"
      "#0  main () at a.cpp:3\n"
      "[Inferior 1 (process 11) detached]\n");
  EXPECT_EQ(stacks, (Stacks{{12,
                             {"__GI___clock_nanosleep (...) at ../sysdeps/clock_nanosleep.c:48",
                              "pysleep (timeout=<optimized out>) from /lib/a.so", "?? ()"}},
                            {11, {"main () at a.cpp:3"}}}));
}

TEST(StackParse, eu_stack) {
  const Stacks stacks = parse_eu_stack(
      "PID 11 - process\n"
      "TID 11:\n"
      "#0  0x0000ffffb1876ce0 clock_nanosleep@@GLIBC_2.17\n"
      "#1  0x0000ffffb1c78430 std::vector<int>::at(unsigned long)\n"
      "#10 0x0000ffffb1c78431\n"
      "TID 12:\n"
      "TID 13:\n"
      "#0  0x0000ffffb1876ce0 read\n"
      "eu-stack: dwfl_thread_getframes tid 13: no matching address range\n");
  EXPECT_EQ(stacks, (Stacks{{11, {"clock_nanosleep", "std::vector<int>::at(unsigned long)", "??"}},
                            {13, {"read"}}}));
}

TEST(StackParse, py_spy) {
  const Stacks stacks = parse_py_spy(
      "Process 11: python3 -c \n"
      "import time\n"
      "Python v3.11.7 (/usr/bin/python3.11)\n"
      "\n"
      "Thread 11 (idle): \"MainThread\"\n"
      "    inner (<string>:3)\n"
      "    <module> (<string>:5)\n"
      "Thread 12 (active+gil): \"bg\"\n"
      "    Thread.run (threading.py:982)\n"
      "    0xffffb1842030 (libc.so.6)\n");
  EXPECT_EQ(stacks, (Stacks{{11, {"inner (<string>:3)", "<module> (<string>:5)"}},
                            {12, {"Thread.run (threading.py:982)", "?? (libc.so.6)"}}}));
}

TEST(StackParse, what_is_no_answer_has_no_threads) {
  for (const char* text :
       {"", "\n\n", "ptrace: Operation not permitted.\n", "Thread \n#", "TID :\n"}) {
    EXPECT_EQ(parse_gdb(text), Stacks()) << text;
    EXPECT_EQ(parse_eu_stack(text), Stacks()) << text;
    EXPECT_EQ(parse_py_spy(text), Stacks()) << text;
  }
}

TEST(StackText, threads_in_the_same_place_are_one_entry_and_the_main_one_is_first) {
  const ProcessState process = process_with({"main", "a", "b", "c"});
  EXPECT_EQ(
      stacks_in_words({{103, {"wait"}}, {102, {"work"}}, {101, {"wait"}}, {100, {"go", "main"}}},
                      process),
      "  main thread\n"
      "    #0 go\n"
      "    #1 main\n"
      "  2 threads: a, c\n"
      "    #0 wait\n"
      "  thread b\n"
      "    #0 work\n");
}

TEST(StackText, many_equal_threads_are_counted_and_not_all_named) {
  const ProcessState process = process_with({"main", "a", "b", "c", "d", "e"});
  EXPECT_EQ(states_in_words(process),
            "  main thread and 5 others: a, b, c, d, ...\n    sleeping\n");
}

TEST(StackText, a_thread_that_waits_in_the_kernel_shows_where) {
  ProcessState process = process_with({"main"});
  process.threads[0].state = 'D';
  process.threads[0].call = "fsync of /data/model";
  process.threads[0].kernel_frames = {"folio_wait_bit", "ksys_fsync"};
  EXPECT_EQ(states_in_words(process),
            "  main thread\n"
            "    waiting in the kernel, where no signal reaches it in fsync of /data/model\n"
            "    kernel: folio_wait_bit\n"
            "    kernel: ksys_fsync\n");
}

TEST(SystemCall, is_named_with_what_it_works_on) {
  const TemporaryFolder descriptors;
  std::filesystem::create_symlink("socket:[42]", descriptors / "7");
  const auto words = [&](const std::string& line) {
    return system_call_in_words(line, descriptors.path().string());
  };
  EXPECT_EQ(words(std::to_string(SYS_read) + " 0x7 0xffff 0x1 0x0 0x0 0x0 0xfff 0xfff"),
            "read of a socket");
  std::filesystem::create_symlink("/data/model", descriptors / "9");
  EXPECT_EQ(words(std::to_string(SYS_fsync) + " 0x9"), "fsync of /data/model");
  EXPECT_EQ(words(std::to_string(SYS_read) + " 0x8 0xffff"), "read");
  EXPECT_EQ(words(std::to_string(SYS_futex) + " 0x7"), "futex (a lock or a condition)");
  EXPECT_EQ(words("99999 0x7"), "system call 99999");
  EXPECT_EQ(words("running"), "");
  EXPECT_EQ(words("-1 0x0 0x0"), "");
  EXPECT_EQ(words(""), "");
}

TEST(PermissionHint, says_what_helps) {
  ProcessState process = process_with({"main"});
  process.uid = ::geteuid();
  EXPECT_NE(permission_hint(process, "3").find("ptrace_scope is 3"), std::string::npos);
  if (::geteuid() == 0) {
    EXPECT_NE(permission_hint(process, "1").find("--cap-add SYS_PTRACE"), std::string::npos);
  } else {
    EXPECT_NE(permission_hint(process, "1").find("sysctl kernel.yama.ptrace_scope=0"),
              std::string::npos);
    process.uid = ::geteuid() + 1;
    EXPECT_NE(permission_hint(process, "1").find("belongs to user"), std::string::npos);
  }
}
