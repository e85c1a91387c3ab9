#include "lockstep/environment.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/error.h"

using lockstep::detect_environment;
using lockstep::Environment;
using lockstep::InvalidArgument;
using lockstep::Launcher;
using lockstep::RankEnvironment;

namespace {

using Variables = Environment::Variables;

RankEnvironment detect(const Variables& variables) {
  const auto found = detect_environment(Environment(variables));
  if (!found) {
    throw std::runtime_error("no launcher was detected");
  }
  return *found;
}

// `base` with some variables changed.
Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    base[name] = value;
  }
  return base;
}

Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

// The text of the InvalidArgument that these variables cause.
std::string refusal(const Variables& variables) {
  try {
    detect_environment(Environment(variables));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

// What torchrun gives to rank 3 of 4 on two machines.
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"}};

// What srun -N3 gives to its fifth task of 2 + 2 + 1.
const Variables kSlurm = {{"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_ID", "1234567"},
                          {"SLURM_PROCID", "4"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_STEP_NUM_TASKS", "5"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                          {"SLURM_JOB_NODELIST", "n[1-4]"},
                          {"SLURM_STEP_NODELIST", "n[2-4]"}};

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "0"}};

const Variables kPmi = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

}  // namespace

TEST(DetectEnvironment, a_spare_was_launched_and_is_no_rank_yet) {
  const RankEnvironment spare = detect({{"LOCKSTEP_SPARE", "1"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_WORLD_SIZE", "2"},
                                        {"GROUP_RANK", "1"}});
  EXPECT_EQ(spare.launcher, Launcher::torchrun);
  EXPECT_EQ(spare.rank, -1);
  EXPECT_EQ(spare.local_rank, -1);
  EXPECT_EQ(spare.world_size, 4);
  EXPECT_EQ(spare.local_world_size, 2);
  EXPECT_EQ(spare.node_rank, 1);
}

TEST(Environment, of_process_sees_what_the_process_was_given) {
  const char* path = getenv("PATH");
  ASSERT_NE(path, nullptr);
  EXPECT_EQ(Environment::of_process().get("PATH"), path);
  EXPECT_FALSE(Environment::of_process().has("LOCKSTEP_NO_SUCH_VARIABLE"));
}

TEST(Environment, an_empty_variable_is_set) {
  const Environment environment(Variables{{"EMPTY", ""}});
  EXPECT_TRUE(environment.has("EMPTY"));
  EXPECT_EQ(environment.get("EMPTY"), "");
  EXPECT_EQ(environment.get("EMPT"), std::nullopt);
}

TEST(DetectEnvironment, a_process_started_by_itself_has_no_rank) {
  EXPECT_FALSE(detect_environment(Environment(Variables{{"PATH", "/bin"}, {"MASTER_ADDR", "n1"}})));
}

TEST(DetectEnvironment, launchers_have_the_names_of_their_enumerators) {
  EXPECT_EQ(to_string(Launcher::none), "none");
  EXPECT_EQ(to_string(Launcher::torchrun), "torchrun");
  EXPECT_EQ(to_string(Launcher::slurm), "slurm");
  EXPECT_EQ(to_string(Launcher::open_mpi), "open_mpi");
  EXPECT_EQ(to_string(Launcher::pmi), "pmi");
}

TEST(DetectEnvironment, all_of_torchruns_variables_are_read) {
  const auto found = detect(kTorchrun);
  EXPECT_EQ(found.launcher, Launcher::torchrun);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_world_size, 2);
  EXPECT_EQ(found.node_rank, 1);
  EXPECT_EQ(found.master_addr, "node0");
  EXPECT_EQ(found.master_port, 29500);
  EXPECT_TRUE(found.use_agent_store);
  EXPECT_EQ(found.restart_count, 2);
}

TEST(DetectEnvironment, rank_and_world_size_alone_mean_one_machine) {
  const auto found = detect({{"RANK", "2"}, {"WORLD_SIZE", "3"}});
  EXPECT_EQ(found.local_rank, 2);
  EXPECT_EQ(found.local_world_size, 3);
  EXPECT_EQ(found.node_rank, 0);
  EXPECT_EQ(found.master_addr, "");
  EXPECT_EQ(found.master_port, std::nullopt);
  EXPECT_FALSE(found.use_agent_store);
  EXPECT_EQ(found.restart_count, 0);
}

TEST(DetectEnvironment, a_local_world_size_places_a_rank_that_has_no_local_rank) {
  const auto found = detect({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}});
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.node_rank, 1);
}

TEST(DetectEnvironment, the_agent_serves_the_store_only_if_the_variable_is_exactly_True) {
  for (const char* value : {"False", "true", "1", ""}) {
    EXPECT_FALSE(detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", value}})).use_agent_store)
        << value;
  }
}

TEST(DetectEnvironment, one_of_rank_and_world_size_alone_is_refused_and_the_other_is_named) {
  EXPECT_EQ(refusal({{"WORLD_SIZE", "2"}}),
            "RANK is not set although WORLD_SIZE is; set both or neither");
  EXPECT_EQ(refusal({{"RANK", "0"}}),
            "WORLD_SIZE is not set although RANK is; set both or neither");
}

TEST(DetectEnvironment, a_world_size_that_is_not_a_positive_integer_is_refused) {
  for (const std::string value : {"abc", "2x", "", "-1", "0", " 2", "+2", "2.0", "4294967298"}) {
    EXPECT_EQ(refusal(with(kTorchrun, {{"WORLD_SIZE", value}})),
              "WORLD_SIZE is '" + value + "'; it must be a positive integer");
  }
}

TEST(DetectEnvironment, a_rank_that_is_not_a_non_negative_integer_is_refused) {
  for (const std::string value : {"abc", "1x", "", "-1", "99999999999999999999"}) {
    EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", value}})),
              "RANK is '" + value + "'; it must be a non-negative integer");
  }
}

TEST(DetectEnvironment, a_rank_outside_the_world_is_refused_with_both_values) {
  EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", "4"}})),
            "RANK is 4; it must be less than WORLD_SIZE, which is 4");
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_RANK", "2"}})),
            "LOCAL_RANK is 2; it must be less than LOCAL_WORLD_SIZE, which is 2");
}

TEST(DetectEnvironment, a_process_that_joins_where_others_are_left_out_keeps_its_local_rank) {
  const RankEnvironment joins = detect(
      with(kTorchrun, {{"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "2"}, {"LOCKSTEP_JOINS", "1"}}));
  EXPECT_EQ(joins.local_rank, 3);
  EXPECT_EQ(joins.local_world_size, 2);
}

TEST(DetectEnvironment, more_local_ranks_than_ranks_are_refused) {
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}})),
            "LOCAL_WORLD_SIZE is 5; it cannot exceed WORLD_SIZE, which is 4");
}

TEST(DetectEnvironment, a_port_that_does_not_exist_is_refused) {
  for (const std::string value : {"0", "65536", "-1", "http", ""}) {
    EXPECT_EQ(refusal(with(kTorchrun, {{"MASTER_PORT", value}})),
              "MASTER_PORT is '" + value + "'; it must be an integer from 1 to 65535");
  }
  EXPECT_EQ(detect(with(kTorchrun, {{"MASTER_PORT", "1"}})).master_port, 1);
  EXPECT_EQ(detect(with(kTorchrun, {{"MASTER_PORT", "65535"}})).master_port, 65535);
}

TEST(DetectEnvironment, a_malformed_variable_that_has_a_default_is_refused_all_the_same) {
  EXPECT_EQ(refusal(with(kTorchrun, {{"GROUP_RANK", "x"}})),
            "GROUP_RANK is 'x'; it must be a non-negative integer");
  EXPECT_EQ(refusal(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "x"}})),
            "TORCHELASTIC_RESTART_COUNT is 'x'; it must be a non-negative integer");
}

TEST(DetectEnvironment, torchrun_inside_a_slurm_step_is_torchrun) {
  const auto found = detect(with(kSlurm, kTorchrun));
  EXPECT_EQ(found.launcher, Launcher::torchrun);
  EXPECT_EQ(found.rank, 3);
}

TEST(DetectEnvironment, a_slurm_task_finds_its_place_and_the_first_node_of_its_step) {
  const auto found = detect(with(kSlurm, {{"SLURM_RESTART_COUNT", "1"}, {"PMI_RANK", "4"}}));
  EXPECT_EQ(found.launcher, Launcher::slurm);
  EXPECT_EQ(found.rank, 4);
  EXPECT_EQ(found.world_size, 5);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_world_size, 1);
  EXPECT_EQ(found.node_rank, 2);
  EXPECT_EQ(found.master_addr, "n2");
  EXPECT_EQ(found.master_port, 15000 + 4567);
  EXPECT_FALSE(found.use_agent_store);
  EXPECT_EQ(found.restart_count, 1);
}

TEST(DetectEnvironment, slurm_falls_back_to_the_variables_of_the_job) {
  const auto found =
      detect(without(without(kSlurm, "SLURM_STEP_NUM_TASKS"), "SLURM_STEP_NODELIST"));
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.master_addr, "n1");
}

TEST(DetectEnvironment, the_users_master_overrides_slurms) {
  const auto found = detect(with(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(found.master_addr, "10.0.0.1");
  EXPECT_EQ(found.master_port, 4000);
}

TEST(DetectEnvironment, an_empty_master_address_overrides_nothing) {
  EXPECT_EQ(detect(with(kSlurm, {{"MASTER_ADDR", ""}})).master_addr, "n2");
}

TEST(DetectEnvironment, a_users_master_needs_neither_node_list_nor_job_id) {
  Variables variables = with(kSlurm, {{"MASTER_ADDR", "n9"}, {"MASTER_PORT", "4000"}});
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_JOB_ID"}) {
    variables.erase(name);
  }
  EXPECT_EQ(detect(variables).master_addr, "n9");
}

TEST(DetectEnvironment, a_slurm_port_comes_from_the_last_four_digits_of_the_job) {
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_JOB_ID", "7"}})).master_port, 15007);
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_JOB_ID", "4294959999"}})).master_port, 24999);
}

TEST(DetectEnvironment, a_batch_script_is_not_a_rank) {
  EXPECT_FALSE(detect_environment(Environment(without(kSlurm, "SLURM_STEP_ID"))));
}

TEST(DetectEnvironment, the_shell_of_an_interactive_allocation_is_not_a_rank) {
  EXPECT_FALSE(detect_environment(Environment(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}}))));
}

TEST(DetectEnvironment, a_slurm_variable_that_is_missing_is_named) {
  for (const std::string name : {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}) {
    EXPECT_EQ(refusal(without(kSlurm, name)),
              name + " is not set although SLURM_STEP_ID is; set both or neither");
  }
  EXPECT_EQ(refusal(without(kSlurm, "SLURM_STEP_TASKS_PER_NODE")),
            "SLURM_STEP_TASKS_PER_NODE is not set although SLURM_STEP_ID is");
  EXPECT_EQ(refusal(without(kSlurm, "SLURM_JOB_ID")),
            "SLURM_JOB_ID is ''; it must be a non-negative integer, or MASTER_PORT must be set");
}

TEST(DetectEnvironment, malformed_slurm_notation_is_refused_with_the_name_of_its_variable) {
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_NODELIST", "n[1-"}})),
            "SLURM_STEP_NODELIST: the host list 'n[1-' cannot be read: its brackets do not match");
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(y2)"}})),
            "SLURM_STEP_TASKS_PER_NODE: the tasks per node '2(y2)' cannot be read: '2(y2)' is not "
            "of the form 2 or 2(x3)");
}

TEST(DetectEnvironment, a_slurm_local_rank_beyond_its_node_is_refused) {
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_LOCALID", "1"}})),
            "SLURM_LOCALID is 1; it must be less than SLURM_STEP_TASKS_PER_NODE, which is 1");
}

TEST(DetectEnvironment, open_mpi_on_several_machines_has_no_master_unless_the_user_names_one) {
  const auto found = detect(kOpenMpi);
  EXPECT_EQ(found.launcher, Launcher::open_mpi);
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.world_size, 4);
  EXPECT_EQ(found.local_rank, 0);
  EXPECT_EQ(found.local_world_size, 2);
  EXPECT_EQ(found.node_rank, 1);  // not OMPI_COMM_WORLD_NODE_RANK, which is a rank on its node
  EXPECT_EQ(found.master_addr, "");
  EXPECT_EQ(found.master_port, std::nullopt);

  const auto named = detect(with(kOpenMpi, {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(named.master_addr, "n1");
  EXPECT_EQ(named.master_port, 4000);
}

TEST(DetectEnvironment, mpi_on_one_machine_meets_at_loopback) {
  const auto found = detect(kPmi);
  EXPECT_EQ(found.launcher, Launcher::pmi);
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.master_addr, "127.0.0.1");
  EXPECT_EQ(found.master_port, std::nullopt);
  EXPECT_EQ(detect(with(kPmi, {{"MASTER_ADDR", "n1"}})).master_addr, "n1");
}

TEST(DetectEnvironment, mvapich_is_read_like_pmi) {
  const auto found = detect({{"MV2_COMM_WORLD_RANK", "3"},
                             {"MV2_COMM_WORLD_SIZE", "6"},
                             {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                             {"MV2_COMM_WORLD_LOCAL_SIZE", "3"}});
  EXPECT_EQ(found.launcher, Launcher::pmi);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.world_size, 6);
  EXPECT_EQ(found.node_rank, 1);
}

TEST(DetectEnvironment, mpi_ranks_must_know_their_place_on_the_machine) {
  EXPECT_EQ(refusal(without(kPmi, "MPI_LOCALRANKID")),
            "MPI_LOCALRANKID is not set although PMI_RANK is; set both or neither");
  EXPECT_EQ(refusal(without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE")),
            "OMPI_COMM_WORLD_LOCAL_SIZE is not set although OMPI_COMM_WORLD_RANK is; set both or "
            "neither");
}

TEST(DetectEnvironment, an_mpi_world_of_one_needs_no_place_on_the_machine) {
  const auto found = detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}});
  EXPECT_EQ(found.local_world_size, 1);
  EXPECT_EQ(found.master_addr, "127.0.0.1");
}

TEST(DetectEnvironment, open_mpi_goes_before_pmi) {
  EXPECT_EQ(detect(with(kPmi, kOpenMpi)).launcher, Launcher::open_mpi);
}
