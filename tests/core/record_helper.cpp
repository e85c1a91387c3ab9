// Fails in the way its first argument says, under lockstep::record. record_test.cpp starts it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/error.h"
#include "lockstep/record.h"

// Called by blocking_library.cpp while the dynamic loader holds its lock.
std::atomic<bool> loader_is_blocked = false;
extern "C" void block_the_loader() {
  loader_is_blocked = true;
  loader_is_blocked.notify_all();
  for (;;) {
    ::pause();
  }
}

namespace helper {

std::string argument;  // the second one on the command line

struct Unusual : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int touch_forbidden_memory();

// An exception that cannot be reported.
struct Broken : std::exception {
  const char* what() const noexcept override {
    touch_forbidden_memory();
    return "";
  }
};

// The functions whose names a backtrace must show. Not inlined, cloned or called last, so that
// their frames exist under their names.
template <typename Exception>
[[gnu::noipa]] int throw_deep(int depth) {
  if (depth > 0) {
    return throw_deep<Exception>(depth - 1) + 1;
  }
  throw Exception(argument);
}

[[gnu::noipa]] int touch_forbidden_memory() {
  void* page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile int*>(page) = 1;
  return 1;
}

int touch_memory_beyond_a_file() {
  const int fd = ::memfd_create("empty", 0);
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  *static_cast<volatile int*>(page) = 1;
  return 1;
}

[[gnu::noipa]] int fill_the_stack(int depth) {
  volatile char frame[16 << 10];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : fill_the_stack(depth + 1) + frame[0];
}

int overflow_the_stack() {
  // Where the stack is unlimited this would fill the machine's memory instead.
  const rlimit limit = {.rlim_cur = 8 << 20, .rlim_max = 8 << 20};
  ::setrlimit(RLIMIT_STACK, &limit);
  return fill_the_stack(0);
}

int in_a_thread(const std::function<int()>& fail) {
  std::thread thread([&] { fail(); });
  thread.join();
  return 0;
}

// More threads than cores, so that some of them fail while the first one is reporting.
int crash_in_many_threads() {
  constexpr int kThreads = 16;
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int turn = 0; turn < kThreads; ++turn) {
    threads.emplace_back([&start] {
      start.arrive_and_wait();
      touch_forbidden_memory();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return 0;
}

int crash_while_the_loader_is_blocked() {
  std::thread([] {
    // As libraries' threads do, which leaves the crashing thread alone with its signals.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    ::dlopen(argument.c_str(), RTLD_NOW);
  }).detach();
  loader_is_blocked.wait(false);
  return touch_forbidden_memory();
}

int destroy_a_running_thread() {
  std::thread thread([] { ::pause(); });
  return 0;
}

int wait_for_a_signal() {
  std::printf("ready\n");
  std::fflush(stdout);
  for (;;) {
    ::pause();
  }
}

// An exception that is caught inside must not be taken for the one that gets out.
int throw_after_catching_another() {
  try {
    throw_deep<Unusual>(1);
  } catch (const Unusual&) {
  }
  return throw_deep<std::logic_error>(2);
}

int throw_again() {
  try {
    return throw_deep<std::runtime_error>(1);
  } catch (const std::exception&) {
    throw;
  }
}

int raise_signal(int number) {
  ::raise(number);
  return 0;
}

const std::map<std::string, std::function<int()>> kWays = {
    {"succeed", [] { return 0; }},
    {"return_7", [] { return 7; }},
    {"exit_3", []() -> int { std::exit(3); }},
    {"end_main_thread", []() -> int { ::pthread_exit(nullptr); }},
    {"invalid_argument", [] { return throw_deep<lockstep::InvalidArgument>(3); }},
    {"runtime_error", [] { return throw_deep<std::runtime_error>(0); }},
    {"unusual", [] { return throw_deep<Unusual>(0); }},
    {"logic_error_second", throw_after_catching_another},
    {"rethrow", throw_again},
    {"int", []() -> int { throw 42; }},
    {"bad_alloc", []() -> int { throw std::bad_alloc(); }},
    {"thread_exception",
     [] { return in_a_thread([] { return throw_deep<lockstep::InvalidArgument>(3); }); }},
    {"broken_exception", []() -> int { throw Broken(); }},
    {"thread_broken_exception", [] { return in_a_thread([]() -> int { throw Broken(); }); }},
    {"noexcept", []() noexcept { return throw_deep<std::runtime_error>(0); }},
    {"running_thread", destroy_a_running_thread},
    {"segv", touch_forbidden_memory},
    {"thread_segv", [] { return in_a_thread(touch_forbidden_memory); }},
    {"many_segv", crash_in_many_threads},
    {"bus", touch_memory_beyond_a_file},
    {"ill", [] { return raise_signal(SIGILL); }},
    {"fpe", [] { return raise_signal(SIGFPE); }},
    {"trap", [] { return raise_signal(SIGTRAP); }},
    {"abort", []() -> int { std::abort(); }},
    {"check",
     [] {
       LOCKSTEP_CHECK(argument.empty(), "argument is ", argument);
       return 0;
     }},
    {"stack_overflow", overflow_the_stack},
    {"blocked_loader", crash_while_the_loader_is_blocked},
    {"wait", wait_for_a_signal},
};

int run(int argc, char** argv) {
  argument = argc > 2 ? argv[2] : "";
  return kWays.at(argv[1])();
}

}  // namespace helper

int main(int argc, char** argv) {
  // Core files of crashes on purpose would only fill a disk.
  const rlimit none = {};
  ::setrlimit(RLIMIT_CORE, &none);
  const int code = lockstep::record(argc, argv, helper::run);
  if (code == 7 && std::getenv("LOCKSTEP_TEST_CRASH_AFTER") != nullptr) {
    return helper::touch_forbidden_memory();
  }
  return code;
}
