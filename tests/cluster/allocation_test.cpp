#include "cluster/allocation.h"

#include <gtest/gtest.h>

#include "cluster/slurm_address.h"
#include "contains.h"
#include "lockstep/error.h"

using lockstep::Allocation;
using lockstep::Endpoint;
using lockstep::Environment;
using lockstep::Host;
using lockstep::InvalidArgument;
using lockstep::Scheduler;
using lockstep::TaskPlace;
using Variables = Environment::Variables;

namespace {

std::optional<Allocation> detect(const Variables& variables) {
  return lockstep::detect_allocation(Environment(variables),
                                     [](const std::string& path) -> std::optional<std::string> {
                                       if (path == "/var/spool/pbs/aux/12.srv")
                                         return "n1\nn1\nn2\nn2\n";
                                       return std::nullopt;
                                     });
}

std::string refusal(const Variables& variables) {
  try {
    detect(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

std::vector<std::string> names(const Allocation& allocation) {
  std::vector<std::string> all;
  for (const Host& host : allocation.hosts) all.push_back(host.name);
  return all;
}

Variables operator+(Variables left, const Variables& right) {
  for (const auto& [name, value] : right) left[name] = value;
  return left;
}

// As Slurm 22.05 sets them.
const Variables kBatch{{"SLURM_JOB_ID", "4711"},     {"SLURM_JOB_NODELIST", "n[1-2]"},
                       {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NTASKS", "2"},
                       {"SLURM_PROCID", "0"},        {"SLURM_LOCALID", "0"},
                       {"SLURM_NODEID", "0"},        {"SLURM_TASKS_PER_NODE", "1(x2)"}};
const Variables kStep{{"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "n[1-2]"},
                      {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_NODEID", "1"},         {"SLURM_PROCID", "1"}};

}  // namespace

TEST(Allocation, outside_of_any_there_is_none) {
  EXPECT_FALSE(detect({{"PATH", "/bin"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}}));
  EXPECT_FALSE(detect({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}})) << "a pod alone is no job";
}

TEST(Allocation, a_batch_script_of_slurm_has_the_jobs_nodes) {
  const auto found = detect(kBatch);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->scheduler, Scheduler::slurm);
  EXPECT_EQ(found->job_id, "4711");
  EXPECT_EQ(names(*found), (std::vector<std::string>{"n1", "n2"}));
  EXPECT_FALSE(found->place);
  EXPECT_EQ(found->evidence, "SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=n[1-2]");
}

TEST(Allocation, a_task_of_srun_has_its_place) {
  const auto found = detect(kBatch + kStep);
  ASSERT_TRUE(found && found->place);
  EXPECT_EQ(found->place->nodes, 2);
  EXPECT_EQ(found->place->node_rank, 1);
  EXPECT_EQ(found->place->endpoint->host, "n1");
  // The same on all nodes, another in the next step.
  EXPECT_EQ(found->place->endpoint,
            detect(kBatch + kStep + Variables{{"SLURM_NODEID", "0"}})->place->endpoint);
  EXPECT_NE(found->place->endpoint,
            detect(kBatch + kStep + Variables{{"SLURM_STEP_ID", "1"}})->place->endpoint);
}

TEST(Allocation, a_shell_in_a_slurm_job_is_where_its_nodes_are_started_from) {
  // salloc with LaunchParameters=use_interactive_step, and srun --pty.
  for (const Variables& shell : {Variables{{"SLURM_STEP_ID", "4294967290"},
                                           {"SLURM_STEP_NUM_TASKS", "1"},
                                           {"SLURM_STEP_NODELIST", "n1"}},
                                 Variables{{"SLURM_STEP_ID", "3"},
                                           {"SLURM_STEP_NUM_TASKS", "1"},
                                           {"SLURM_STEP_NODELIST", "n1"}}}) {
    const auto found = detect(kBatch + shell);
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->place);
    EXPECT_EQ(found->hosts.size(), 2u);
  }
}

TEST(Allocation, several_launchers_on_a_node_are_refused_with_the_cure) {
  EXPECT_TRUE(contains(refusal(kBatch + kStep + Variables{{"SLURM_STEP_NUM_TASKS", "8"}}),
                       "srun --ntasks-per-node=1"));
  EXPECT_TRUE(contains(refusal({{"OMPI_COMM_WORLD_SIZE", "8"},
                                {"OMPI_COMM_WORLD_RANK", "3"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}),
                       "--map-by ppr:1:node"));
  EXPECT_TRUE(contains(refusal({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"MPI_LOCALNRANKS", "2"}}),
                       "mpiexec -ppn 1"));
}

TEST(Allocation, pbs_has_slots_by_repeated_lines) {
  const auto found = detect({{"PBS_JOBID", "12.srv"},
                             {"PBS_ENVIRONMENT", "PBS_INTERACTIVE"},
                             {"PBS_NODEFILE", "/var/spool/pbs/aux/12.srv"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->scheduler, Scheduler::pbs);
  EXPECT_EQ(found->hosts, (std::vector<Host>{{"n1", 2, {}, 0}, {"n2", 2, {}, 2}}));
  EXPECT_TRUE(contains(found->evidence, "interactive"));
}

TEST(Allocation, a_nodefile_that_is_not_here_is_named_with_the_cure) {
  EXPECT_TRUE(contains(refusal({{"PBS_JOBID", "12"}, {"PBS_NODEFILE", "/gone"}}),
                       "'/gone', which cannot be read here"));
  EXPECT_TRUE(contains(refusal({{"PBS_JOBID", "12"}}), "PBS_NODEFILE is not set"));
}

TEST(Allocation, open_mpi_says_how_many_and_where_mpirun_is) {
  const Variables mpi{{"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                      {"OMPI_COMM_WORLD_NODE_RANK", "0"},
                      {"PMIX_NAMESPACE", "2815885313"},
                      {"OMPI_MCA_orte_hnp_uri", "2815885312.0;tcp://127.0.0.1,10.7.0.1:41235"}};
  const auto found = detect(mpi);
  ASSERT_TRUE(found && found->place);
  EXPECT_EQ(found->scheduler, Scheduler::mpi);
  EXPECT_EQ(found->place->nodes, 2);
  EXPECT_EQ(found->place->node_rank, 1);
  EXPECT_EQ(found->place->endpoint->host, "10.7.0.1");
  // Under a batch system the first node is known.
  EXPECT_EQ(detect(mpi + kBatch)->place->endpoint->host, "n1");
  // Hydra and Intel MPI do not say where: the user must.
  const auto hydra = detect({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}});
  ASSERT_TRUE(hydra && hydra->place);
  EXPECT_FALSE(hydra->place->endpoint);
}

TEST(Allocation, tasks_of_mpirun_inside_a_slurm_job_are_no_heads) {
  const auto found = detect(kBatch + kStep +
                            Variables{{"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_RANK", "1"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  ASSERT_TRUE(found && found->place);
  EXPECT_EQ(found->scheduler, Scheduler::mpi);
}

TEST(Allocation, kubeflow_sets_torchruns_variables) {
  const auto found = detect({{"PET_NNODES", "3"},
                             {"PET_NODE_RANK", "2"},
                             {"PET_NPROC_PER_NODE", "auto"},
                             {"PET_MASTER_ADDR", "job-node-0-0.job"},
                             {"PET_MASTER_PORT", "29400"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->scheduler, Scheduler::kubernetes);
  EXPECT_EQ(
      found->place,
      (TaskPlace{.nodes = 3, .node_rank = 2, .endpoint = Endpoint{"job-node-0-0.job", 29400}}));
}

TEST(Allocation, pods_of_a_jobset_find_the_first_by_its_name) {
  const Variables pod{{"JOBSET_NAME", "train"},
                      {"REPLICATED_JOB_NAME", "workers"},
                      {"JOB_COMPLETION_INDEX", "1"},
                      {"NNODES", "4"}};
  const auto found = detect(pod);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->place, (TaskPlace{.nodes = 4,
                                     .node_rank = 1,
                                     .endpoint = Endpoint{"train-workers-0-0.train", 29500}}));
  Variables without = pod;
  without.erase("NNODES");
  EXPECT_TRUE(contains(refusal(without), "NNODES is not set"));
}

TEST(Allocation, pods_of_a_pytorchjob_are_nodes) {
  const auto found = detect({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                             {"MASTER_ADDR", "job-master-0"},
                             {"MASTER_PORT", "23456"},
                             {"RANK", "1"},
                             {"WORLD_SIZE", "2"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->place,
            (TaskPlace{.nodes = 2, .node_rank = 1, .endpoint = Endpoint{"job-master-0", 23456}}));
}

TEST(Allocation, numbers_that_are_none_are_named) {
  EXPECT_TRUE(contains(refusal({{"PET_NNODES", "x"}}), "PET_NNODES is 'x'"));
  EXPECT_TRUE(contains(refusal({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_RANK"));
}

TEST(Allocation, the_address_of_a_slurm_node_is_found_in_what_scontrol_prints) {
  EXPECT_EQ(lockstep::node_address_in("NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.7 NodeHostName=m7 "
                                      "Version=22.05.8\n"),
            "10.0.0.7");
  EXPECT_FALSE(lockstep::node_address_in("Node n9 not found\n"));
  EXPECT_FALSE(lockstep::node_address_in("NodeName=n1 NodeAddr= Port=1"));
}
