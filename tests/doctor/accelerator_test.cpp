#include "doctor/accelerator_facts.h"

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>

#include "finding_support.h"
#include "tests/core/temporary_folder.h"

namespace lockstep {
namespace {

AcceleratorFacts healthy_gpus() {
  AcceleratorFacts facts;
  facts.gpus = 8;
  facts.nvidia_devices = true;
  facts.driver = "550.54.15";
  facts.nccl_library = "/site/nvidia/nccl/lib/libnccl.so.2";
  facts.nccl_chosen_by = "torch";
  facts.nccl_version = facts.torch_nccl_version = 22703;
  facts.wanted_plugin = "libnccl-net.so";
  facts.plugin_problem = "libnccl-net.so: cannot open shared object file";
  return facts;
}

PythonFacts torch_for_cuda(const std::string& cuda) {
  PythonFacts facts;
  facts.python = "/usr/bin/python3";
  facts.version = "3.11.2";
  facts.torch_folder = "/site/torch";
  facts.torch_version = "2.11.0";
  facts.torch_cuda = cuda;
  return facts;
}

NetworkFacts network_with(const std::vector<std::string>& interfaces) {
  NetworkFacts facts;
  for (const std::string& name : interfaces) {
    facts.interfaces.push_back({.name = name, .up = true, .carrier = true});
  }
  return facts;
}

Judged judge(const AcceleratorFacts& facts, const PythonFacts& python) {
  Judged judged;
  judge_accelerators(facts, python, judged.list());
  EXPECT_TRUE(judged.every_problem_has_a_cure());
  return judged;
}

Judged judge_variables(const Environment::Variables& variables,
                       const NetworkFacts& network = network_with({"lo", "eth0", "ib0"})) {
  Judged judged;
  judge_nccl_environment(Environment(variables), healthy_gpus(), network, /*several_nodes=*/true,
                         judged.list());
  EXPECT_TRUE(judged.every_problem_has_a_cure());
  return judged;
}

TEST(JudgeAccelerators, healthy_gpus_are_good) {
  const Judged judged = judge(healthy_gpus(), torch_for_cuda("12.8"));
  for (const Finding& each : judged.all()) EXPECT_EQ(each.level, FindingLevel::ok) << each.what;
  EXPECT_NE(judged.text("nccl").find("2.27.3"), std::string::npos);
}

TEST(JudgeAccelerators, a_machine_without_gpus_is_good_and_one_with_gpus_that_do_not_work_is_not) {
  AcceleratorFacts facts;
  facts.problem = "no driver";
  EXPECT_EQ(judge(facts, {}).worst("gpu"), FindingLevel::ok);
  facts.nvidia_devices = true;
  EXPECT_EQ(judge(facts, {}).worst("gpu"), FindingLevel::error);
}

TEST(JudgeAccelerators, a_driver_older_than_cuda_is_an_error_and_a_torch_without_cuda_a_warning) {
  AcceleratorFacts facts = healthy_gpus();
  EXPECT_NE(judge(facts, torch_for_cuda("13.0")).text("gpu").find("580"), std::string::npos);
  EXPECT_EQ(judge(facts, torch_for_cuda("")).worst("gpu"), FindingLevel::warning);
}

TEST(JudgeAccelerators, another_nccl_than_torchs_is_a_warning) {
  AcceleratorFacts facts = healthy_gpus();
  facts.nccl_chosen_by = "LD_LIBRARY_PATH";
  EXPECT_EQ(judge(facts, torch_for_cuda("12.8")).worst("nccl"), FindingLevel::ok);
  facts.nccl_version = 21805;
  const Judged judged = judge(facts, torch_for_cuda("12.8"));
  EXPECT_EQ(judged.worst("nccl"), FindingLevel::warning);
  EXPECT_NE(judged.text("nccl").find("2.18.5"), std::string::npos);
}

TEST(ReadAccelerators, the_nccl_that_a_program_would_load_is_found) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder / "nvidia0") << "";
  std::filesystem::copy(LOCKSTEP_FAKE_NCCL, folder / "libnccl.so.2");
  PythonFacts python;
  python.nccl_library = LOCKSTEP_FAKE_NCCL;
  const DeviceFolders devices{.sys = folder.path(), .dev = folder.path()};
  const AcceleratorFacts own =
      read_accelerators(Environment(Environment::Variables{}), python, devices);
  EXPECT_EQ(own.nccl_chosen_by, "torch");
  EXPECT_EQ(own.nccl_version, 21805);
  EXPECT_EQ(own.torch_nccl_version, 21805);
  EXPECT_EQ(own.wanted_plugin, "libnccl-net.so");
  const AcceleratorFacts other = read_accelerators(
      Environment(Environment::Variables{{"LD_LIBRARY_PATH", "/nowhere:" + folder.path().string()},
                                         {"NCCL_NET_PLUGIN", "ofi"}}),
      python, devices);
  EXPECT_EQ(other.nccl_chosen_by, "LD_LIBRARY_PATH");
  EXPECT_EQ(other.nccl_library, folder / "libnccl.so.2");
  EXPECT_EQ(other.wanted_plugin, "libnccl-net-ofi.so");
  EXPECT_TRUE(other.plugin_library.empty());
  EXPECT_FALSE(other.plugin_problem.empty());
}

TEST(NcclVersion, both_ways_of_numbering_are_read) {
  EXPECT_EQ(nccl_version_text(2708), "2.7.8");
  EXPECT_EQ(nccl_version_text(22304), "2.23.4");
}

TEST(NcclVariables, nothing_said_is_nothing_to_say) {
  EXPECT_TRUE(judge_variables({}).all().empty());
}

TEST(NcclVariables, interfaces_must_exist) {
  const auto level = [](const char* value) {
    return judge_variables({{"NCCL_SOCKET_IFNAME", value}}).worst("nccl variables");
  };
  EXPECT_EQ(level("eth"), FindingLevel::ok);  // beginnings of names
  EXPECT_EQ(level("bond,ib"), FindingLevel::ok);
  EXPECT_EQ(level("^docker"), FindingLevel::ok);
  EXPECT_EQ(level("=eth0"), FindingLevel::ok);
  EXPECT_EQ(level("=eth"), FindingLevel::error);
  EXPECT_EQ(level("enp"), FindingLevel::error);
  EXPECT_EQ(level("lo"), FindingLevel::error);
  EXPECT_EQ(judge_variables({{"GLOO_SOCKET_IFNAME", "eth"}}).worst("nccl variables"),
            FindingLevel::error);  // Gloo wants the whole name
  EXPECT_TRUE(judge_variables({{"GLOO_SOCKET_IFNAME", "eth0"}}).all().empty());
}

TEST(NcclVariables, infiniband_that_is_there_and_not_used_is_a_warning) {
  NetworkFacts network = network_with({"lo", "eth0"});
  EXPECT_TRUE(judge_variables({{"NCCL_IB_DISABLE", "1"}}, network).all().empty());
  network.rdma_ports = {{.device = "mlx5_0", .port = 1, .state = "ACTIVE"}};
  EXPECT_EQ(judge_variables({{"NCCL_IB_DISABLE", "1"}}, network).worst("nccl variables"),
            FindingLevel::warning);
  EXPECT_TRUE(judge_variables({{"NCCL_IB_DISABLE", "0"}}, network).all().empty());
  EXPECT_TRUE(judge_variables({{"NCCL_IB_HCA", "mlx5"}}, network).all().empty());
  EXPECT_TRUE(judge_variables({{"NCCL_IB_HCA", "=mlx5_0:1"}}, network).all().empty());
  EXPECT_EQ(judge_variables({{"NCCL_IB_HCA", "mlx4_0"}}, network).worst("nccl variables"),
            FindingLevel::error);
}

TEST(NcclVariables, a_provider_without_a_plugin_is_an_error) {
  const Judged judged = judge_variables({{"FI_PROVIDER", "efa"}});
  EXPECT_EQ(judged.worst("nccl variables"), FindingLevel::error);
  EXPECT_NE(judged.text("nccl variables").find("aws-ofi-nccl"), std::string::npos);
}

TEST(NcclVariables, slow_ways_and_old_names_are_said) {
  EXPECT_EQ(judge_variables({{"NCCL_P2P_DISABLE", "1"}}).worst("nccl variables"),
            FindingLevel::warning);
  EXPECT_EQ(judge_variables({{"NCCL_BLOCKING_WAIT", "1"}}).worst("nccl variables"),
            FindingLevel::note);
}

TEST(PythonFacts, the_answer_of_a_python_is_read) {
  PythonFacts facts;
  read_python_answer(
      "python 3.11.2\ntorch_folder /a folder/torch\ntorch_version 2.11.0+cu128\ntorch_cuda 12.8\n"
      "nccl /a folder/nvidia/nccl/lib/libnccl.so.2\nnonsense\n",
      facts);
  EXPECT_EQ(facts.version, "3.11.2");
  EXPECT_EQ(facts.torch_folder, "/a folder/torch");
  EXPECT_EQ(facts.torch_version, "2.11.0+cu128");
  EXPECT_EQ(facts.torch_cuda, "12.8");
  EXPECT_EQ(facts.nccl_library, "/a folder/nvidia/nccl/lib/libnccl.so.2");
}

TEST(PythonFacts, one_without_torch_is_a_note_and_one_that_fails_an_error) {
  PythonFacts facts{.python = "/usr/bin/python3", .version = "3.11.2"};
  Judged judged;
  judge_python(facts, judged.list());
  EXPECT_EQ(judged.worst("python"), FindingLevel::note);
  facts.problem = "it ended with exit code 1";
  judge_python(facts, judged.list());
  EXPECT_EQ(judged.worst("python"), FindingLevel::error);
}

}  // namespace
}  // namespace lockstep
