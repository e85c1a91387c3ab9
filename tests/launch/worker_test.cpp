#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "launch/python_template.h"
#include "launch/worker_command.h"
#include "launch/worker_environment.h"
#include "lockstep/error.h"

using lockstep::Environment;
using lockstep::find_worker_command;
using lockstep::InvalidArgument;
using lockstep::Placement;
using lockstep::RunOptions;
using lockstep::substitute;
using Words = std::vector<std::string>;

namespace {

// Environment({{"A", "B"}}) alone could be read as the copy of another Environment.
Environment of(Environment::Variables variables) {
  return Environment(std::move(variables));
}

// A folder with a Python of its own (which is never started) and the working directory in it.
class WorkerCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "worker_command_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = std::filesystem::canonical(name);
    before_ = std::filesystem::current_path();
    std::filesystem::current_path(root_);
    std::filesystem::create_directories(root_ / "bin");
    put("bin/python3", "#!/bin/sh\n", 0755);
    environment_ = of({{"PATH", (root_ / "bin").string()}});
  }

  void TearDown() override {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(root_);
  }

  void put(const std::string& name, const std::string& text, mode_t mode = 0644) {
    std::ofstream(root_ / name) << text;
    ASSERT_EQ(::chmod((root_ / name).c_str(), mode), 0);
  }

  Words words(RunOptions options) { return find_worker_command(options, environment_).argv(0); }

  std::string refusal(RunOptions options) {
    try {
      find_worker_command(options, environment_);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "not refused";
  }

  std::string python() const { return root_ / "bin/python3"; }

  std::filesystem::path root_, before_;
  Environment environment_{Environment::Variables{}};
};

RunOptions script(const std::string& name, Words arguments = {}) {
  RunOptions options;
  options.script = name;
  options.script_arguments = std::move(arguments);
  return options;
}

}  // namespace

TEST_F(WorkerCommandTest, a_script_goes_to_python_unbuffered) {
  put("train.py", "");
  EXPECT_EQ(words(script("train.py", {"--lr", "1"})),
            (Words{python(), "-u", "train.py", "--lr", "1"}));
}

TEST_F(WorkerCommandTest, a_py_file_goes_to_python_even_if_it_is_executable) {
  put("train.py", "#!/bin/sh\n", 0755);
  EXPECT_EQ(words(script("./train.py")), (Words{python(), "-u", "./train.py"}));
}

TEST_F(WorkerCommandTest, a_module_is_not_looked_for) {
  RunOptions options = script("pkg.train");
  options.module = true;
  EXPECT_EQ(words(options), (Words{python(), "-u", "-m", "pkg.train"}));
}

TEST_F(WorkerCommandTest, executables_are_run_themselves) {
  put("elf",
      "\x7f"
      "ELF....",
      0755);
  put("sh", "#!/bin/sh\n", 0755);
  put("env", "#!/usr/bin/env -S bash -e\n", 0755);
  EXPECT_EQ(words(script("./elf", {"x"})), (Words{"./elf", "x"}));
  EXPECT_EQ(words(script("elf")), Words{"./elf"});
  EXPECT_EQ(words(script("sh")), Words{"./sh"});
  EXPECT_EQ(words(script("env")), Words{"./env"});
}

TEST_F(WorkerCommandTest, executables_for_python_and_files_that_are_not_executable_go_to_python) {
  put("one", "#!/usr/bin/python3.11\n", 0755);
  put("two", "#!/usr/bin/env PYTHONPATH=x python3\n", 0755);
  put("three", "print(1)\n", 0755);
  put("four",
      "\x7f"
      "ELF");
  for (const char* name : {"one", "two", "three", "four"}) {
    EXPECT_EQ(words(script(name)), (Words{python(), "-u", name}));
  }
}

TEST_F(WorkerCommandTest, programs_are_found_on_the_path) {
  put("bin/tool",
      "\x7f"
      "ELF",
      0755);
  const std::string tool = root_ / "bin/tool";
  EXPECT_EQ(words(script("tool")), Words{tool});
  RunOptions options = script("tool");
  options.no_python = true;
  EXPECT_EQ(words(options), Words{tool});
}

TEST_F(WorkerCommandTest, no_python_runs_whatever_is_executable) {
  put("train.py", "#!/bin/sh\n", 0755);
  RunOptions options = script("./train.py");
  options.no_python = true;
  EXPECT_EQ(words(options), Words{"./train.py"});
  options.script = "train.py";
  EXPECT_EQ(refusal(options),
            "there is no program 'train.py' on PATH; for the one in this folder write ./train.py");
  put("plain", "");
  options.script = "./plain";
  EXPECT_NE(refusal(options).find("is not executable; run chmod +x ./plain"), std::string::npos);
}

TEST_F(WorkerCommandTest, run_path_runs_the_script_in_a_python_that_has_its_arguments) {
  put("train.py", "");
  RunOptions options = script("train.py", {"a"});
  options.run_path = true;
  options.no_python = true;
  const Words argv = words(options);
  ASSERT_EQ(argv.size(), 6u);
  EXPECT_EQ(argv[2], "-c");
  EXPECT_NE(argv[3].find("runpy.run_path"), std::string::npos);
  EXPECT_EQ(argv[4], "train.py");
  EXPECT_EQ(argv[5], "a");
}

TEST_F(WorkerCommandTest, what_is_missing_is_named) {
  EXPECT_EQ(refusal(script("trian.py")), "there is no file 'trian.py' in " + root_.string());
  EXPECT_EQ(refusal(script("/no/such.py")), "there is no file '/no/such.py'");
  EXPECT_EQ(refusal(script("train")),
            "there is no file 'train' in " + root_.string() + ", and no such program on PATH");
  EXPECT_EQ(refusal(script("bin")), "'bin' is a folder without __main__.py; give a script");
  put("bin/__main__.py", "");
  EXPECT_EQ(words(script("bin")), (Words{python(), "-u", "bin"}));
}

TEST_F(WorkerCommandTest, python_is_the_named_one_then_that_of_the_virtual_environment) {
  put("train.py", "");
  std::filesystem::create_directories(root_ / "venv/bin");
  put("venv/bin/python", "", 0755);
  put("bin/python9", "", 0755);
  const std::string path = root_ / "bin";
  environment_ = of({{"PATH", path}, {"VIRTUAL_ENV", root_ / "venv"}});
  EXPECT_EQ(words(script("train.py"))[0], root_ / "venv/bin/python");
  environment_ = of({{"PATH", path}, {"VIRTUAL_ENV", root_ / "venv"}, {"PYTHON_EXEC", "python9"}});
  EXPECT_EQ(words(script("train.py"))[0], root_ / "bin/python9");
  environment_ = of({{"PATH", path}, {"PYTHON_EXEC", "/no/python"}});
  EXPECT_NE(refusal(script("train.py")).find("PYTHON_EXEC is '/no/python'"), std::string::npos);
  environment_ = of({{"PATH", root_}});
  EXPECT_NE(refusal(script("train.py")).find("there is no python3 on PATH"), std::string::npos);
}

TEST_F(WorkerCommandTest, the_local_rank_is_put_into_every_word_but_the_program) {
  put("t.py", "");
  RunOptions options = script("t.py", {"--dir=r${local_rank}", "$local_rank", "$$HOME", "$other"});
  options.use_env = false;
  EXPECT_EQ(
      find_worker_command(options, environment_).argv(12),
      (Words{python(), "-u", "t.py", "--local-rank=12", "--dir=r12", "12", "$HOME", "$other"}));
}

TEST(PythonTemplate, follows_safe_substitute) {
  const auto with_rank = [](const char* text) { return substitute(text, {{"rank", "7"}}); };
  EXPECT_EQ(with_rank("a$rank,${rank}b"), "a7,7b");
  EXPECT_EQ(with_rank("$rank_ ${ranks} $Rank"), "$rank_ ${ranks} $Rank");
  EXPECT_EQ(with_rank("$$rank $$$rank"), "$rank $7");
  EXPECT_EQ(with_rank("${rank $ {rank} ${} $1 ${rank-x} $"), "${rank $ {rank} ${} $1 ${rank-x} $");
  EXPECT_EQ(with_rank(""), "");
  EXPECT_EQ(substitute("${a}", {{"a", "$a"}}), "$a");
}

TEST(WorkerEnvironment, has_torchruns_variables_and_ours) {
  RunOptions options;
  const Placement placement{.rank = 5,
                            .local_rank = 1,
                            .world_size = 8,
                            .local_world_size = 4,
                            .group_rank = 1,
                            .group_world_size = 2,
                            .role_rank = 3,
                            .role_world_size = 6,
                            .role_name = "trainer",
                            .master_addr = "10.0.0.1",
                            .master_port = 1234,
                            .restart_count = 2,
                            .max_restarts = 3,
                            .run_id = "job",
                            .error_file = "/e.json",
                            .epoch = 9,
                            .slot = 6,
                            .slots = 9,
                            .agent_socket = "/a.sock",
                            .run_dir = "/run1"};
  const Environment launcher = of({{"HOME", "/h"},
                                   {"RANK", "outer"},
                                   {"OMP_NUM_THREADS", "3"},
                                   {"LOCKSTEP_SECRET", "s"},
                                   {"LOCKSTEP_SECRET_FILE", "f"}});
  const Environment::Variables expected{
      {"HOME", "/h"},
      {"RANK", "5"},
      {"LOCAL_RANK", "1"},
      {"WORLD_SIZE", "8"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"GROUP_RANK", "1"},
      {"GROUP_WORLD_SIZE", "2"},
      {"ROLE_RANK", "3"},
      {"ROLE_WORLD_SIZE", "6"},
      {"ROLE_NAME", "trainer"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "1234"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RUN_ID", "job"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_ERROR_FILE", "/e.json"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "3"},
      {"LOCKSTEP_AGENT", "/a.sock"},
      {"LOCKSTEP_EPOCH", "9"},
      {"LOCKSTEP_SLOT", "6"},
      {"LOCKSTEP_SLOTS", "9"},
      {"LOCKSTEP_RUN_DIR", "/run1"}};
  EXPECT_EQ(worker_environment(launcher, options, placement), expected);
}

TEST(WorkerEnvironment, a_spare_has_no_place_and_a_worker_of_a_launcher_in_a_spare_is_none) {
  const Environment launcher(Environment::Variables{{"LOCKSTEP_SPARE", "1"}, {"RANK", "5"}});
  EXPECT_FALSE(worker_environment(launcher, {}, {.rank = 1}).contains("LOCKSTEP_SPARE"));
  const auto spare = worker_environment(launcher, {}, {.world_size = 4, .spare = true});
  EXPECT_EQ(spare.at("LOCKSTEP_SPARE"), "1");
  EXPECT_EQ(spare.at("WORLD_SIZE"), "4");
  for (const char* name :
       {"RANK", "LOCAL_RANK", "LOCKSTEP_EPOCH", "LOCKSTEP_SLOT", "LOCKSTEP_SLOTS", "MASTER_PORT"}) {
    EXPECT_FALSE(spare.contains(name)) << name;
  }
}

TEST(WorkerEnvironment, a_worker_that_joins_others_at_work_knows_it_and_no_other_does) {
  const Environment launcher{Environment::Variables{{"LOCKSTEP_JOINS", "1"}}};  // of an outer job
  EXPECT_EQ(worker_environment(launcher, {}, {.joins = true}).at("LOCKSTEP_JOINS"), "1");
  EXPECT_FALSE(worker_environment(launcher, {}, {}).contains("LOCKSTEP_JOINS"));
}

TEST(WorkerEnvironment, several_workers_get_one_thread_each_and_the_user_is_told) {
  const Environment launcher{Environment::Variables{}};
  EXPECT_EQ(worker_environment(launcher, {}, {.local_world_size = 2}).at("OMP_NUM_THREADS"), "1");
  EXPECT_FALSE(worker_environment(launcher, {}, {}).contains("OMP_NUM_THREADS"));
  EXPECT_TRUE(lockstep::omp_notice(launcher, 2));
  EXPECT_FALSE(lockstep::omp_notice(launcher, 1));
  EXPECT_FALSE(lockstep::omp_notice(of({{"OMP_NUM_THREADS", ""}}), 2));
}

TEST(WorkerEnvironment, what_the_user_said_about_nccl_stays_and_outer_sockets_do_not) {
  const Environment launcher =
      of({{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}, {"LOCKSTEP_AGENT", "/o"}});
  const auto variables = worker_environment(launcher, {}, {.use_agent_store = false});
  EXPECT_EQ(variables.at("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
  EXPECT_FALSE(variables.contains("LOCKSTEP_AGENT"));
  EXPECT_EQ(variables.at("TORCHELASTIC_USE_AGENT_STORE"), "False");
}

TEST(WorkerEnvironment, under_a_virtual_local_rank_each_sees_its_own_gpu_as_the_first) {
  RunOptions options;
  options.virtual_local_rank = true;
  const Placement placement{.local_rank = 1, .local_world_size = 2};
  const auto free = worker_environment(of({{"A", ""}}), options, placement);
  EXPECT_EQ(free.at("LOCAL_RANK"), "0");
  EXPECT_EQ(free.at("CUDA_VISIBLE_DEVICES"), "1");
  const auto chosen =
      worker_environment(of({{"CUDA_VISIBLE_DEVICES", "4, 6"}}), options, placement);
  EXPECT_EQ(chosen.at("CUDA_VISIBLE_DEVICES"), "6");
  EXPECT_THROW(worker_environment(of({{"CUDA_VISIBLE_DEVICES", "4"}}), options, placement),
               InvalidArgument);
}
