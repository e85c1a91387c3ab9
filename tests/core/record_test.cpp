#include "lockstep/record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/subprocess.h"
#include "lockstep/error.h"
#include "tests/core/temporary_folder.h"

using lockstep::concat;
using lockstep::ExitStatus;
using lockstep::Subprocess;
using lockstep::SubprocessOptions;
using lockstep::testing::read_text;
using lockstep::testing::TemporaryFolder;
using nlohmann::json;

namespace {

// Longer than the handler's own limit for naming functions.
constexpr std::chrono::seconds kPatience{30};

struct Outcome {
  ExitStatus status;
  pid_t pid = 0;
  std::string error_output;
  std::optional<json> file;

  std::string message() const { return file->at("message").at("message"); }
  std::string stack() const { return file->at("message").at("extraInfo").at("py_callstack"); }
};

// A helper that was started to fail in one way, and the files it leaves.
class Failing {
 public:
  explicit Failing(const std::string& way, const std::string& argument = "",
                   std::map<std::string, std::string> variables = {{"RANK", "1"}})
      : process_(options(way, argument, std::move(variables))) {}

  Subprocess& process() { return process_; }
  std::string output() const { return folder_ / "out"; }

  Outcome outcome() {
    Outcome result;
    const auto status = process_.wait_for(kPatience);
    if (!status) {
      throw std::runtime_error("the helper hangs");
    }
    result.status = *status;
    result.pid = process_.pid();
    result.error_output = read_text(folder_ / "err");
    if (std::filesystem::exists(folder_ / "error.json")) {
      result.file = json::parse(read_text(folder_ / "error.json"));
    }
    return result;
  }

  // Files beside those that the test asked for.
  std::vector<std::string> leftovers() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const std::string name = entry.path().filename().string();
      if (name != "out" && name != "err" && name != "error.json") {
        names.push_back(name);
      }
    }
    return names;
  }

 private:
  SubprocessOptions options(const std::string& way, const std::string& argument,
                            std::map<std::string, std::string> variables) {
    variables.emplace("TORCHELASTIC_ERROR_FILE", folder_ / "error.json");
    return {.argv = {LOCKSTEP_RECORD_HELPER, way, argument},
            .set_environment = std::move(variables),
            .unset_environment = {"RANK", "TORCHELASTIC_ERROR_FILE"},
            .stdout_path = folder_ / "out",
            .stderr_path = folder_ / "err"};
  }

  TemporaryFolder folder_;
  Subprocess process_;
};

Outcome fail(const std::string& way, const std::string& argument = "",
             std::map<std::string, std::string> variables = {{"RANK", "1"}}) {
  Failing failing(way, argument, std::move(variables));
  Outcome outcome = failing.outcome();
  EXPECT_TRUE(failing.leftovers().empty()) << failing.leftovers().front();
  return outcome;
}

// What the line and the message say of a signal.
std::string signal_text(const Outcome& outcome, int number) {
  return concat("SIG", ::sigabbrev_np(number), ": signal ", number, " received by PID ",
                outcome.pid);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool starts_with(const std::string& text, const std::string& part) {
  return text.rfind(part, 0) == 0;
}

std::ptrdiff_t lines_of(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

// Where a backtrace first names a function; a large number where it does not.
int frame_of(const std::string& stack, const std::string& function) {
  const std::size_t at = stack.find(function);
  return at == std::string::npos
             ? 1000
             : static_cast<int>(std::count(stack.begin(), stack.begin() + at, '#')) - 1;
}

}  // namespace

TEST(Record, success_and_a_code_of_mains_own_write_nothing) {
  for (const auto& [way, code] : {std::pair{"succeed", 0}, {"return_7", 7}, {"exit_3", 3}}) {
    const Outcome outcome = fail(way);
    EXPECT_EQ(outcome.status, ExitStatus{.exit_code = code}) << way;
    EXPECT_EQ(outcome.error_output, "") << way;
    EXPECT_FALSE(outcome.file) << way;
  }
}

TEST(Record, an_invalid_argument_exits_2_and_says_so_in_one_line_and_in_the_file) {
  const auto before = std::time(nullptr);
  const Outcome outcome = fail("invalid_argument", "batch_size is 0; it must be positive");
  const auto after = std::time(nullptr);
  EXPECT_EQ(outcome.status, ExitStatus{.exit_code = 2});
  EXPECT_EQ(outcome.error_output,
            "lockstep: rank 1: InvalidArgument: batch_size is 0; it must be positive\n");
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.message(), "InvalidArgument: batch_size is 0; it must be positive");
  const std::string timestamp = outcome.file->at("message").at("extraInfo").at("timestamp");
  EXPECT_GE(std::stoll(timestamp), before);
  EXPECT_LE(std::stoll(timestamp), after);
}

TEST(Record, other_exceptions_exit_1) {
  const Outcome outcome = fail("runtime_error", "no space left");
  EXPECT_EQ(outcome.status, ExitStatus{.exit_code = 1});
  EXPECT_EQ(outcome.error_output, "lockstep: rank 1: runtime_error: no space left\n");
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.message(), "runtime_error: no space left");
}

TEST(Record, an_exceptions_type_is_named_without_its_namespace) {
  EXPECT_EQ(fail("unusual", "x").error_output, "lockstep: rank 1: Unusual: x\n");
  EXPECT_EQ(fail("bad_alloc").error_output, "lockstep: rank 1: bad_alloc: std::bad_alloc\n");
}

TEST(Record, an_exception_that_is_no_std_exception_is_named_by_its_type) {
  const Outcome outcome = fail("int");
  EXPECT_EQ(outcome.status, ExitStatus{.exit_code = 1});
  EXPECT_EQ(outcome.error_output, "lockstep: rank 1: int: thrown, and not a std::exception\n");
}

TEST(Record, the_line_has_no_rank_where_there_is_none) {
  EXPECT_EQ(fail("runtime_error", "x", {}).error_output, "lockstep: runtime_error: x\n");
  EXPECT_EQ(fail("runtime_error", "x", {{"RANK", ""}}).error_output,
            "lockstep: runtime_error: x\n");
}

TEST(Record, without_an_error_file_only_the_line_is_written) {
  const Outcome outcome =
      fail("runtime_error", "x", {{"RANK", "0"}, {"TORCHELASTIC_ERROR_FILE", ""}});
  EXPECT_EQ(outcome.error_output, "lockstep: rank 0: runtime_error: x\n");
  EXPECT_FALSE(outcome.file);
  EXPECT_EQ(fail("segv", "", {{"TORCHELASTIC_ERROR_FILE", ""}}).status,
            ExitStatus{.signal = SIGSEGV});
}

TEST(Record, an_error_file_that_cannot_be_written_is_named_and_the_failure_still_told) {
  const Outcome outcome = fail("invalid_argument", "x",
                               {{"RANK", "1"}, {"TORCHELASTIC_ERROR_FILE", "/no/such/error.json"}});
  EXPECT_EQ(outcome.status, ExitStatus{.exit_code = 2});
  EXPECT_EQ(outcome.error_output,
            "lockstep: rank 1: cannot write the error file '/no/such/error.json': No such file or "
            "directory\nlockstep: rank 1: InvalidArgument: x\n");
}

TEST(Record, any_message_makes_a_valid_file_and_one_line) {
  const Outcome outcome = fail("runtime_error",
                               "a \"quote\", a \\, a tab\t, two\nlines, \xc3\xa9 "
                               "\xe2\x82\xac \xf0\x9f\x98\x80, and \xff\xc3( bad");
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.message(),
            "runtime_error: a \"quote\", a \\, a tab\t, two\nlines, \xc3\xa9 \xe2\x82\xac "
            "\xf0\x9f\x98\x80, and \xef\xbf\xbd\xef\xbf\xbd( bad");
  EXPECT_EQ(lines_of(outcome.error_output), 1);
  EXPECT_TRUE(contains(outcome.error_output, "two lines"));
}

TEST(Record, a_very_long_message_is_cut_in_the_line_and_in_the_file) {
  const Outcome outcome = fail("runtime_error", std::string(100'000, '\x01'));
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.message(), "runtime_error: " + std::string(8192, '\x01'));
  EXPECT_EQ(outcome.error_output,
            "lockstep: rank 1: runtime_error: " + std::string(1500, ' ') + "...\n");
}

TEST(Record, libtorchs_own_backtrace_goes_to_the_file_and_not_into_the_line) {
  const std::string text = "shape mismatch\nException raised from add (most recent call first):\n";
  const Outcome outcome = fail("runtime_error", text);
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.error_output, "lockstep: rank 1: runtime_error: shape mismatch\n");
  EXPECT_EQ(outcome.message(), "runtime_error: " + text);
}

TEST(Record, the_backtrace_of_an_exception_begins_where_it_was_thrown) {
  const Outcome outcome = fail("invalid_argument", "x");
  ASSERT_TRUE(outcome.file);
  EXPECT_TRUE(
      starts_with(outcome.stack(), "C++ backtrace of the throw (most recent call first):\n"))
      << outcome.stack();
  EXPECT_EQ(frame_of(outcome.stack(),
                     "int helper::throw_deep<lockstep::InvalidArgument>(int) (record_helper+0x"),
            0)
      << outcome.stack();
  EXPECT_LT(frame_of(outcome.stack(), "helper::run(int, char**)"), 20) << outcome.stack();
  // torchrun shows the call stack and not the message, so that must be in it.
  EXPECT_TRUE(outcome.stack().ends_with("\nInvalidArgument: x")) << outcome.stack();
}

TEST(Record, an_exception_caught_inside_is_not_the_one_recorded) {
  const Outcome outcome = fail("logic_error_second", "x");
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.message(), "logic_error: x");
  EXPECT_EQ(frame_of(outcome.stack(), "throw_deep<std::logic_error>"), 0) << outcome.stack();
  EXPECT_FALSE(contains(outcome.stack(), "Unusual"));
}

TEST(Record, an_exception_thrown_again_shows_where_that_happened) {
  const Outcome outcome = fail("rethrow", "x");
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(frame_of(outcome.stack(), "helper::throw_again()"), 0) << outcome.stack();
}

TEST(Record, an_exception_that_leaves_another_thread_is_recorded_where_it_was_thrown) {
  const Outcome outcome = fail("thread_exception", "x");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGABRT});
  EXPECT_EQ(outcome.error_output, "lockstep: rank 1: InvalidArgument: x\n");
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(outcome.message(), "InvalidArgument: x");
  EXPECT_EQ(frame_of(outcome.stack(), "throw_deep<lockstep::InvalidArgument>"), 0)
      << outcome.stack();
}

TEST(Record, an_exception_that_may_not_leave_its_function_is_recorded) {
  const Outcome outcome = fail("noexcept", "x");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGABRT});
  EXPECT_EQ(outcome.error_output, "lockstep: rank 1: runtime_error: x\n");
  ASSERT_TRUE(outcome.file);
}

TEST(Record, terminate_without_an_exception_is_recorded) {
  const Outcome outcome = fail("running_thread");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGABRT});
  EXPECT_EQ(outcome.error_output,
            "lockstep: rank 1: std::terminate: called without an exception\n");
  ASSERT_TRUE(outcome.file);
  EXPECT_TRUE(contains(outcome.stack(), "destroy_a_running_thread")) << outcome.stack();
}

TEST(Record, a_segmentation_fault_is_recorded_with_its_address_and_stack_and_stays_one) {
  const Outcome outcome = fail("segv");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGSEGV});
  ASSERT_TRUE(outcome.file);
  EXPECT_TRUE(starts_with(outcome.message(), signal_text(outcome, SIGSEGV) + " on access to 0x"))
      << outcome.message();
  EXPECT_EQ(outcome.error_output, concat("lockstep: rank 1: ", outcome.message(), "\n"));
  EXPECT_EQ(frame_of(outcome.stack(), "_ZN6helper22touch_forbidden_memoryEv"), 0)
      << outcome.stack();
  EXPECT_LT(frame_of(outcome.stack(), "_ZN6helper3runEiPPc"), 20) << outcome.stack();
  EXPECT_TRUE(outcome.stack().ends_with(concat("\n", outcome.message()))) << outcome.stack();
}

TEST(Record, a_fault_in_another_thread_is_recorded) {
  const Outcome outcome = fail("thread_segv");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGSEGV});
  EXPECT_EQ(lines_of(outcome.error_output), 1);
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(frame_of(outcome.stack(), "_ZN6helper22touch_forbidden_memoryEv"), 0)
      << outcome.stack();
}

TEST(Record, of_many_threads_that_fail_at_once_one_is_recorded_whole) {
  const Outcome outcome = fail("many_segv");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGSEGV});
  EXPECT_EQ(lines_of(outcome.error_output), 1) << outcome.error_output;
  ASSERT_TRUE(outcome.file);
  EXPECT_EQ(frame_of(outcome.stack(), "_ZN6helper22touch_forbidden_memoryEv"), 0)
      << outcome.stack();
}

TEST(Record, every_fatal_signal_is_recorded_and_is_what_the_process_dies_of) {
  for (const auto& [way, number] : {std::pair{"bus", SIGBUS},
                                    {"ill", SIGILL},
                                    {"fpe", SIGFPE},
                                    {"trap", SIGTRAP},
                                    {"abort", SIGABRT}}) {
    const Outcome outcome = fail(way);
    EXPECT_EQ(outcome.status, ExitStatus{.signal = number}) << way;
    ASSERT_TRUE(outcome.file) << way;
    EXPECT_TRUE(starts_with(outcome.message(), signal_text(outcome, number))) << outcome.message();
    EXPECT_EQ(outcome.error_output, concat("lockstep: rank 1: ", outcome.message(), "\n"));
    EXPECT_LT(frame_of(outcome.stack(), "_ZN6helper3runEiPPc"), 20) << outcome.stack();
  }
}

TEST(Record, a_failed_check_is_recorded_as_the_abort_it_is) {
  const Outcome outcome = fail("check", "x");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGABRT});
  EXPECT_TRUE(contains(outcome.error_output, "internal check failed")) << outcome.error_output;
  ASSERT_TRUE(outcome.file);
  EXPECT_TRUE(contains(outcome.stack(), "check_failed")) << outcome.stack();
}

TEST(Record, a_full_stack_is_recorded) {
  const Outcome outcome = fail("stack_overflow");
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGSEGV});
  ASSERT_TRUE(outcome.file);
  EXPECT_TRUE(starts_with(outcome.message(), signal_text(outcome, SIGSEGV))) << outcome.message();
  EXPECT_TRUE(contains(outcome.stack(), "fill_the_stack")) << outcome.stack();
}

TEST(Record, a_crash_while_reporting_ends_the_process_at_once_and_does_not_hide_a_signal) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(fail("broken_exception").status, ExitStatus{.signal = SIGSEGV});
  EXPECT_EQ(fail("thread_broken_exception").status, ExitStatus{.signal = SIGABRT});
  // A thread that waits for itself would wait for ten seconds.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9));
}

TEST(Record, a_signal_from_outside_names_its_sender) {
  const TemporaryFolder folder;
  const std::string fifo = folder / "ready";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const lockstep::UniqueFd ready(::open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  Subprocess process({.argv = {LOCKSTEP_RECORD_HELPER, "wait"},
                      .set_environment = {{"TORCHELASTIC_ERROR_FILE", folder / "error.json"}},
                      .stdout_path = fifo,
                      .stderr_path = folder / "err"});
  char letter = 0;
  ASSERT_EQ(::read(ready.get(), &letter, 1), 1);
  process.signal(SIGSEGV);
  EXPECT_EQ(process.wait_for(kPatience), ExitStatus{.signal = SIGSEGV});
  const std::string message =
      json::parse(read_text(folder / "error.json")).at("message").at("message");
  EXPECT_EQ(message, concat("SIGSEGV: signal 11 received by PID ", process.pid(), ", sent by PID ",
                            ::getpid()));
}

TEST(Record, a_crash_is_recorded_and_ends_although_the_loader_is_blocked) {
  const Outcome outcome = fail("blocked_loader", LOCKSTEP_BLOCKING_LIBRARY);
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGSEGV});
  EXPECT_EQ(lines_of(outcome.error_output), 1) << outcome.error_output;
  ASSERT_TRUE(outcome.file);
  EXPECT_TRUE(starts_with(outcome.message(), signal_text(outcome, SIGSEGV))) << outcome.message();
  EXPECT_EQ(outcome.stack(), outcome.message());
}

TEST(Record, after_main_has_returned_nothing_is_recorded_any_more) {
  const Outcome outcome = fail("return_7", "", {{"LOCKSTEP_TEST_CRASH_AFTER", "1"}});
  EXPECT_EQ(outcome.status, ExitStatus{.signal = SIGSEGV});
  EXPECT_FALSE(outcome.file);
}

TEST(Record, a_main_thread_that_ends_itself_is_not_stopped) {
  const Outcome outcome = fail("end_main_thread");
  EXPECT_EQ(outcome.status, ExitStatus{});
  EXPECT_EQ(outcome.error_output, "");
}

TEST(Record, the_file_of_an_earlier_attempt_is_replaced) {
  const TemporaryFolder folder;
  std::ofstream(folder / "error.json") << "of an earlier attempt";
  Subprocess process({.argv = {LOCKSTEP_RECORD_HELPER, "runtime_error", "x"},
                      .set_environment = {{"TORCHELASTIC_ERROR_FILE", folder / "error.json"}},
                      .stderr_path = folder / "err"});
  EXPECT_EQ(process.wait().exit_code, 1);
  EXPECT_EQ(json::parse(read_text(folder / "error.json")).at("message").at("message"),
            "runtime_error: x");
}
