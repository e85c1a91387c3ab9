#include "cluster/head_plan.h"

#include <gtest/gtest.h>

#include "launch/run_command.h"
#include "lockstep/error.h"

using lockstep::Allocation;
using lockstep::Environment;
using lockstep::HeadPlan;
using lockstep::Host;
using lockstep::InvalidArgument;
using lockstep::LaunchCommand;
using lockstep::Scheduler;
using lockstep::StarterKind;
using Words = std::vector<std::string>;

namespace {

// Addresses of nobody, so that no resolver is asked.
const std::vector<Host> kHosts{{"192.0.2.201", 2}, {"192.0.2.202"}};

HeadPlan plan(Words arguments, std::vector<Host> hosts = kHosts,
              std::optional<Allocation> allocation = std::nullopt,
              Environment::Variables variables = {}) {
  arguments.insert(arguments.begin(), "--nnodes=auto");
  arguments.push_back("train.py");
  const Environment environment(std::move(variables));
  return lockstep::plan_head(
      {.command = LaunchCommand::run,
       .arguments = arguments,
       .options = lockstep::parse_options(LaunchCommand::run, arguments, environment),
       .hosts = std::move(hosts),
       .allocation = std::move(allocation),
       .version = "1.2.3",
       .program = "/opt/lockstep",
       .working_directory = "/data"},
      environment);
}

Allocation allocation_of(Scheduler scheduler, std::vector<Host> hosts) {
  return {.scheduler = scheduler, .job_id = "7", .evidence = "", .hosts = std::move(hosts)};
}

}  // namespace

TEST(HeadPlan, every_machine_gets_a_brief_of_its_own) {
  const HeadPlan found = plan({"--max-restarts=3"}, kHosts, std::nullopt,
                              {{"PATH", "/bin"}, {"PET_ROLE", "trainer"}, {"SECRETIVE", "no"}});
  ASSERT_EQ(found.nodes.size(), 2u);
  EXPECT_EQ(found.nodes[1].brief.node_rank, 1);
  EXPECT_EQ(found.nodes[1].brief.host, "192.0.2.202");
  EXPECT_EQ(found.nodes[0].brief.max_nodes, 2);
  EXPECT_EQ(found.nodes[0].brief.workers, "2");
  EXPECT_EQ(found.nodes[1].brief.workers, std::nullopt);
  EXPECT_EQ(found.nodes[0].brief.environment, (Environment::Variables{{"PATH", "/bin"}}));
  EXPECT_EQ(found.nodes[0].brief.option_variables.at("PET_ROLE"), "trainer");
  EXPECT_EQ(found.nodes[0].brief.run_id, found.coordinator.terms.run_id);
  EXPECT_EQ(found.coordinator.terms.max_restarts, 3);
  EXPECT_EQ(found.coordinator.expected_hosts, (Words{"192.0.2.201", "192.0.2.202"}));
  EXPECT_GE(found.secret.size(), 32u);
  EXPECT_EQ(found.nodes[0].brief.secret, found.secret);
  EXPECT_NE(plan({}).secret, plan({}).secret);
}

TEST(HeadPlan, the_command_line_decides_about_workers_before_slots_do) {
  for (const auto& node : plan({"--nproc-per-node=3"}).nodes) {
    EXPECT_EQ(node.brief.workers, std::nullopt);
  }
}

TEST(HeadPlan, the_starter_is_that_of_the_allocation_whose_machines_they_are) {
  EXPECT_EQ(plan({}).starter, StarterKind::ssh);
  EXPECT_EQ(plan({}, kHosts, allocation_of(Scheduler::slurm, kHosts)).starter, StarterKind::srun);
  EXPECT_EQ(plan({}, kHosts, allocation_of(Scheduler::slurm, {{"192.0.2.201"}})).starter,
            StarterKind::ssh);
  EXPECT_EQ(plan({}, kHosts, allocation_of(Scheduler::pbs, kHosts)).starter, StarterKind::ssh)
      << "there is no pbsdsh on the PATH";
  EXPECT_EQ(plan({"--starter=ssh"}, kHosts, allocation_of(Scheduler::slurm, kHosts)).starter,
            StarterKind::ssh);
}

TEST(HeadPlan, srun_takes_the_environment_along_by_itself) {
  const Environment::Variables here{{"PATH", "/bin"}, {"MINE", "1"}};
  const auto slurm = allocation_of(Scheduler::slurm, kHosts);
  EXPECT_EQ(plan({"--export=NEW=2"}, kHosts, slurm, here).nodes[0].brief.environment,
            (Environment::Variables{{"NEW", "2"}}));
  const HeadPlan none = plan({"--export=NONE,MINE"}, kHosts, slurm, here);
  EXPECT_FALSE(none.nodes[0].starter.export_all);
  EXPECT_EQ(none.nodes[0].brief.environment, (Environment::Variables{{"MINE", "1"}}));
}

TEST(HeadPlan, this_machine_needs_no_ssh) {
  const HeadPlan found = plan({"--remote-lockstep=/there"}, {{"127.0.0.1"}, {"192.0.2.202"}});
  EXPECT_EQ(found.nodes[0].starter.kind, StarterKind::local);
  EXPECT_EQ(found.nodes[0].starter.lockstep, "/opt/lockstep");
  EXPECT_EQ(found.nodes[1].starter.kind, StarterKind::ssh);
  EXPECT_EQ(found.nodes[1].starter.lockstep, "/there");
}

TEST(HeadPlan, what_is_about_one_node_is_refused) {
  EXPECT_THROW(plan({"--node-rank=1"}), InvalidArgument);
  EXPECT_THROW(plan({"--rdzv-backend=etcd", "--rdzv-endpoint=e:1"}), InvalidArgument);
  EXPECT_THROW(plan({"--local-addr=10.0.0.1"}), InvalidArgument);
  EXPECT_THROW(plan({"--rdzv-conf=is_host=1"}), InvalidArgument);
  EXPECT_THROW(plan({"--ssh-options=-i 'key"}), InvalidArgument);
}

TEST(HeadPlan, a_number_of_nodes_must_be_that_of_the_machines) {
  const Environment nothing({});
  const auto with = [&](const std::string& nodes) {
    const Words arguments{"--hosts=a,b", "--nnodes=" + nodes, "train.py"};
    return lockstep::plan_head(
        {.command = LaunchCommand::run,
         .arguments = arguments,
         .options = lockstep::parse_options(LaunchCommand::run, arguments, nothing),
         .hosts = kHosts,
         .allocation = std::nullopt,
         .version = "1",
         .program = "/l",
         .working_directory = "/"},
        nothing);
  };
  EXPECT_EQ(with("1:2").coordinator.terms.min_nodes, 1);
  EXPECT_EQ(with("2").coordinator.terms.min_nodes, 2);
  EXPECT_THROW(with("3"), InvalidArgument);
  EXPECT_THROW(with("1"), InvalidArgument);
}

TEST(HeadPlan, tls_needs_a_secret) {
  EXPECT_TRUE(plan({"--tls"}).options.tls);
  EXPECT_THROW(plan({"--tls", "--insecure"}), InvalidArgument);
}

TEST(HeadPlan, a_dry_run_shows_machines_and_commands_but_no_secret) {
  const HeadPlan found = plan({});
  const std::string text = describe_head(found);
  EXPECT_NE(text.find("node 1: 192.0.2.202"), std::string::npos) << text;
  EXPECT_NE(text.find("ssh -T"), std::string::npos) << text;
  EXPECT_EQ(text.find(found.secret), std::string::npos) << text;
}
